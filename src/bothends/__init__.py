"""Transactional outbox, relay and inbox: reliable messages between databases and brokers.

The public names, sorted. Each is imported when it is first asked for, so that ``import bothends`` costs little and
needs no database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bothends.contexts import AsyncBatchContext as AsyncBatchContext
    from bothends.contexts import AsyncContext as AsyncContext
    from bothends.contexts import BatchContext as BatchContext
    from bothends.contexts import Context as Context
    from bothends.core.retry import Retry as Retry
    from bothends.errors import AddError as AddError
    from bothends.errors import BothendsError as BothendsError
    from bothends.errors import ConfigError as ConfigError
    from bothends.errors import DuplicateEventId as DuplicateEventId
    from bothends.errors import EffectNotAllowed as EffectNotAllowed
    from bothends.errors import EventNotAwaited as EventNotAwaited
    from bothends.errors import HandlerEndedTransaction as HandlerEndedTransaction
    from bothends.errors import InvalidEvent as InvalidEvent
    from bothends.errors import MissingKey as MissingKey
    from bothends.errors import NoTransaction as NoTransaction
    from bothends.errors import NotSent as NotSent
    from bothends.errors import Permanent as Permanent
    from bothends.errors import RetryAfter as RetryAfter
    from bothends.errors import Transient as Transient
    from bothends.errors import UnsafeSavepoint as UnsafeSavepoint
    from bothends.events import NOT_DONE as NOT_DONE
    from bothends.events import UNSET as UNSET
    from bothends.events import EventId as EventId
    from bothends.events import NotDone as NotDone
    from bothends.events import Tombstone as Tombstone
    from bothends.events import event as event
    from bothends.foreign import ForeignJson as ForeignJson
    from bothends.message import Message as Message
    from bothends.outbox import AddOptions as AddOptions
    from bothends.outbox import AsyncTransaction as AsyncTransaction
    from bothends.outbox import Outbox as Outbox
    from bothends.outbox import SyncTransaction as SyncTransaction
    from bothends.service import BatchHandlerDecorator as BatchHandlerDecorator
    from bothends.service import Consumer as Consumer
    from bothends.service import HandlerDecorator as HandlerDecorator
    from bothends.service import Service as Service

_ROOMS = {
    "contexts": "AsyncBatchContext AsyncContext BatchContext Context",
    "core.retry": "Retry",
    "errors": "AddError BothendsError ConfigError DuplicateEventId EffectNotAllowed EventNotAwaited "
    "HandlerEndedTransaction InvalidEvent MissingKey NoTransaction NotSent Permanent RetryAfter Transient "
    "UnsafeSavepoint",
    "events": "EventId NOT_DONE NotDone Tombstone UNSET event",
    "foreign": "ForeignJson",
    "message": "Message",
    "outbox": "AddOptions AsyncTransaction Outbox SyncTransaction",
    "service": "BatchHandlerDecorator Consumer HandlerDecorator Service",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = sorted(_ROOM_OF)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
