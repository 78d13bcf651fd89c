"""Every error of the package. Each says who is to blame and what to do next.

    Exception
    ├── BothendsError(blame)             everything that this package raises at its user
    │   ├── ConfigError                  the deployment: a setting is missing, wrong or contradictory
    │   ├── MissingExtra                 the deployment: an optional package is not installed
    │   ├── AddError                     the caller of ``outbox.add``; nothing was written, the transaction is usable
    │   │   ├── NoTransaction            the statement would commit by itself
    │   │   ├── UnsafeSavepoint          SQLite: a savepoint without a real BEGIN
    │   │   ├── MissingKey               the event's declared key is None
    │   │   ├── DuplicateEventId         this source has an event with this id
    │   │   ├── InvalidEvent             a value, size, name or header that cannot be carried exactly
    │   │   └── EventNotAwaited          ``add_async`` without ``await``
    │   ├── HandlerEndedTransaction      the handler: it committed, rolled back or closed what is the worker's
    │   ├── EffectNotAllowed             the handler: ``ctx.once`` where it cannot be honoured
    │   ├── Undecodable                  the producer: bytes that are not the declared event (reason in ``.reason``)
    │   ├── PublishError                 what a broker said; ``.blame`` is EVENT, PLACE or BROKER
    │   ├── StoreUnavailable             the database cannot be reached; nothing is charged to a message
    │   └── PositionLost                 the log no longer holds the position where a consumer stopped
    ├── Permanent, Transient, RetryAfter raised by handlers to classify a failure
    └── NotSent                          raised by the call of ``ctx.once``: nothing was sent
"""

from __future__ import annotations

import enum

__all__ = [
    "AddError",
    "Blame",
    "BothendsError",
    "ConfigError",
    "DuplicateEventId",
    "EffectNotAllowed",
    "EventNotAwaited",
    "HandlerEndedTransaction",
    "InvalidEvent",
    "MissingExtra",
    "MissingKey",
    "NoTransaction",
    "NotSent",
    "Permanent",
    "PositionLost",
    "PublishError",
    "RetryAfter",
    "StoreUnavailable",
    "Transient",
    "Undecodable",
    "UnsafeSavepoint",
]


class Blame(enum.Enum):
    """Who has to act. A relay spends an attempt only on ``EVENT``."""

    CALLER = "caller"
    DEPLOYMENT = "deployment"
    HANDLER = "handler"
    PRODUCER = "producer"
    EVENT = "event"
    PLACE = "place"
    BROKER = "broker"
    DATABASE = "database"


class BothendsError(Exception):
    """Base of the tree above."""

    blame: Blame = Blame.CALLER


class ConfigError(BothendsError):
    blame = Blame.DEPLOYMENT


class MissingExtra(BothendsError, ImportError):
    """An optional dependency is needed. The message names the ``pip install`` command."""

    blame = Blame.DEPLOYMENT

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: pip install 'bothends[{extra}]'")


class AddError(BothendsError):
    pass


class NoTransaction(AddError):
    pass


class UnsafeSavepoint(AddError):
    pass


class MissingKey(AddError):
    pass


class DuplicateEventId(AddError):
    pass


class InvalidEvent(AddError):
    pass


class EventNotAwaited(AddError):
    pass


class HandlerEndedTransaction(BothendsError):
    blame = Blame.HANDLER


class EffectNotAllowed(BothendsError):
    blame = Blame.HANDLER


class Undecodable(BothendsError):
    """A record that is not the event it should be. ``reason`` becomes the dead letter's reason
    (``undecodable``, ``schema``, ``no_id``); at most 100 characters of ``[a-z_]``."""

    blame = Blame.PRODUCER

    def __init__(self, message: str, *, reason: str = "undecodable") -> None:
        super().__init__(message)
        self.reason = reason


class PublishError(BothendsError):
    """A broker did not take a record. ``blame`` says whether it was the event, the place or the broker."""

    def __init__(self, message: str, *, blame: Blame, reason: str) -> None:
        super().__init__(message)
        self.blame = blame
        self.reason = reason


class StoreUnavailable(BothendsError):
    blame = Blame.DATABASE


class PositionLost(BothendsError):
    """The log holds ``low`` to ``high - 1``, and a consumer stands at ``position``, outside of that. The partition
    delivers nothing until its position is set."""

    blame = Blame.DEPLOYMENT

    def __init__(self, topic: str, partition: int, *, position: int, low: int, high: int) -> None:
        if position < low:
            what = (
                f"the records {position} to {low - 1} were removed before they were read, and are lost to this consumer "
                f"(the log begins at {low}). Lengthen the topic's retention, and set the position to go on"
            )
        else:
            what = (
                f"the stored position {position} is beyond the log's end {high}: the topic was made anew or cut short. "
                f"Set the position to go on"
            )
        super().__init__(f"{topic}[{partition}]: {what}")
        self.topic = topic
        self.partition = partition
        self.position = position
        self.low = low
        self.high = high


class Permanent(Exception):
    """Raised by a handler: trying again cannot help. The message is dead at once.

    ``reason`` is a short code for grouping (at most 100 characters); without it, ``permanent``.
    """

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Transient(Exception):
    """Raised by a handler: try again later, whatever the policy says of the exception's type."""


class RetryAfter(Transient):
    """Raised by a handler: try again after ``seconds`` (0 or more; capped at 7 days)."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"retry after {seconds} s")
        self.seconds = seconds


class NotSent(Exception):
    """Raised by the call of ``ctx.once``: nothing was sent, so calling again is safe."""
