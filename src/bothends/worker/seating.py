"""Seating: what synchronous and asynchronous seats share: whether the worker may go on, and what is running now."""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bothends.errors import ConfigError, StoreUnavailable
from bothends.stores.connection import AsyncConnection, Connection
from bothends.worker.acts import Act, Do, Released, TransactionIs
from bothends.worker.guards import guard_of
from bothends.worker.isolation import Isolation
from bothends.worker.scopes import RunScope

if TYPE_CHECKING:
    from bothends.message import Message
    from bothends.worker.deliveries import Delivery
    from bothends.worker.engine import Plan

__all__ = [
    "Seating", "check_middleware", "messages_of", "signs_of_life_end", "signs_of_life_end_async", "transaction_of",
    "without_connection",
]

_STATES = {0: TransactionIs.ENDED, 2: TransactionIs.OPEN}
"""By libpq's numbers of IDLE and INTRANS; what is broken or failed is not listed."""
_ACTIVE = 1
"""libpq's number of a connection on which a statement runs."""


def check_middleware(plan: Plan) -> None:
    """Raises ConfigError for a coroutine function around handlers that are not."""
    if plan.consumer.is_async:
        return
    for function in plan.consumer.service.middleware:
        if inspect.iscoroutinefunction(function):
            raise ConfigError(
                f"middleware {function.__qualname__} is a coroutine function, but the handlers of {plan.consumer.name} are "
                f"not; write def {function.__name__}(event, ctx, call_next): return call_next(event, ctx)"
            )


class Seating:
    """What both kinds of seats share: whether the worker may go on, and what is running now."""

    def __init__(
        self, plan: Plan, *, resources: Any = None, isolation: Isolation | None = None,
        fence: Callable[[], bool] = lambda: False, stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self.plan = plan
        self.resources = resources
        self.isolation = isolation if isolation is not None else Isolation()
        self.fenced = fence
        """Whether the work in hand was taken from this worker."""
        self.stopping = stopping
        self.running: tuple[Sequence[Delivery], float] | None = None
        """The messages whose handler runs now, and since when (monotonic seconds)."""
        self.scope: RunScope | None = None
        self.secluded = False
        self.begun_at: float | None = None
        """Since when a transaction is open (monotonic seconds)."""
        self._shared = False
        self._share_lock = threading.Lock()

    @property
    def _is_postgresql(self) -> bool:
        return self.plan.store.dialect == "postgresql"

    def _should_speak(self, older_than_s: float) -> bool:
        begun_at = self.begun_at
        return self._is_postgresql and begun_at is not None and time.monotonic() - begun_at > older_than_s

    def _fence(self) -> None:
        if self.fenced():
            raise Released("the partition was given up, or the process is stopping")

    def _quiet(self) -> None:
        if self.secluded:
            return
        self.isolation.unshare()
        if not self.isolation.seclude(lambda: self.stopping() or self.fenced()):
            self._share()
            raise Released("the process is stopping")
        self.secluded = True

    def _loud(self) -> None:
        if self.secluded:
            self.secluded = False
            self.isolation.unseclude()
            self._share()

    def _share(self) -> None:
        while not self.isolation.share(lambda: False):
            pass  # pragma: no cover - it only gives up when asked to

    @contextlib.contextmanager
    def sharing(self) -> Iterator[None]:
        """Around a run of acts: nothing runs while a suspect of this process runs alone."""
        if not self.isolation.share(lambda: self.stopping() or self.fenced()):
            raise Released("the process is stopping")
        self._shared = True
        try:
            yield
        finally:
            self._unshare()

    def _unshare(self) -> None:
        """Once per run: a thread that was abandoned in a handler comes too late."""
        with self._share_lock:
            shared, self._shared = self._shared, False
        if shared:
            self._loud()
            self.isolation.unshare()

    def _ending(self, connection: Connection | AsyncConnection) -> None:
        self.begun_at = None
        guard_of(connection.driver).guard(False)

    def _chain(self, function: Callable[..., Any], takes_context: bool) -> Callable[[Any, Any], Any]:
        """The handler within the service's middleware, the first one outermost."""
        call: Callable[[Any, Any], Any] = function if takes_context else (lambda event, ctx: function(event))
        for middleware in reversed(self.plan.consumer.service.middleware):
            call = _wrapped(middleware, call)
        return call


def _wrapped(middleware: Callable[..., Any], call_next: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(event: Any, ctx: Any) -> Any:
        return middleware(event, ctx, call_next)

    return call


def messages_of(deliveries: Sequence[Delivery]) -> list[Message]:
    """The envelopes of messages that are to be run."""
    return [delivery.message for delivery in deliveries if delivery.message is not None]


def transaction_of(connection: Connection | AsyncConnection) -> TransactionIs:
    """The state of the transaction as the driver knows it, without asking the database. Asked after each message."""
    pgconn = getattr(connection.driver, "pgconn", None)
    if pgconn is None:
        return TransactionIs.OPEN if connection.in_transaction() else TransactionIs.ENDED
    if pgconn.pipeline_status:  # a handler has not left it: what it asked may have failed without its knowing
        return TransactionIs.FAILED
    return _STATES.get(pgconn.transaction_status, TransactionIs.FAILED)


def signs_of_life_end(connection: Connection) -> None:
    """Before the state of a transaction on PostgreSQL is judged: a keeper's statement may be under way there."""
    if connection.driver.pgconn.transaction_status == _ACTIVE:  # asked after each message, so nothing is imported before
        from bothends.stores.postgresql.connection import come_to_rest

        come_to_rest(connection.driver)


async def signs_of_life_end_async(connection: AsyncConnection) -> None:
    if connection.driver.pgconn.transaction_status == _ACTIVE:
        from bothends.stores.postgresql.connection import come_to_rest_async

        await come_to_rest_async(connection.driver)


def without_connection(act: Act) -> None:
    """There is nothing to roll back; anything else needs a connection."""
    if act is not Do.ROLLBACK:
        raise StoreUnavailable("the connection is closed")
