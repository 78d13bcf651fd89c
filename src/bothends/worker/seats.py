"""Seats: where acts are carried out. One database connection, and the handlers that run on it, sync or async."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bothends.contexts import BatchContext, Context
from bothends.stores.connection import Connection
from bothends.stores.steps import Sql
from bothends.worker.acts import Act, Acts, Begin, Call, Called, Commit, Do, Pause, Released, TransactionIs, drive
from bothends.worker.guards import guard_of, guarded_class
from bothends.worker.scopes import BatchScope, EffectsScope, RunScope, Tools
from bothends.worker.seating import Seating, messages_of, signs_of_life_end, transaction_of, without_connection
from bothends.worker.sessions import Sessions

if TYPE_CHECKING:
    from bothends.worker.engine import Plan

__all__ = ["Seat"]


class Seat(Seating):
    """Synchronous handlers, on the thread that drives. A lost connection is made anew by ``connect``."""

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(plan, **options)
        self.connection: Connection | None = None
        self._sessions: Sessions | None = None
        self._tools: Tools | None = None
        self._handlers: dict[int, Callable[[Any, Any], Any]] = {}
        self._abandoned = threading.Event()

    def connect(self) -> None:
        """Raises StoreUnavailable."""
        if self.connection is not None and self.connection.usable():
            return
        self.close()
        plan = self.plan
        connection = plan.store.connect(
            name=f"bothends {plan.consumer.name}", factory=guarded_class(plan.store.dialect, is_async=False),
        )
        try:
            factory = plan.consumer.service.session_factory
            if factory is not None:
                self._sessions = Sessions(plan.consumer.name, factory, plan.store.dialect, connection.driver)
        except BaseException:
            connection.close()
            raise
        self.connection = connection
        self._tools = Tools(plan, connection, self._sessions.make if self._sessions else None, _nothing, self._leave)

    def close(self) -> None:
        connection, self.connection, self._sessions, self._tools = self.connection, None, None, None
        if connection is not None:
            guard_of(connection.driver).guarded = False
            with contextlib.suppress(Exception):  # it is gone either way
                connection.close()

    def drive(self, acts: Acts[None]) -> None:
        """Carries out ``acts``. Raises StoreUnavailable, Released.

        After anything but an orderly end the next run begins on a new connection to PostgreSQL: on this one a transaction
        may be open, or a handler may have left it (``SET ROLE``, a pipeline) so that our statements fail.
        """
        with self.sharing():
            self.connect()
            try:
                drive(acts, self)
            except Released:
                raise
            except BaseException:
                if self._is_postgresql:
                    self.close()
                raise

    def perform(self, act: Act) -> Any:
        connection = self.connection
        if connection is None:
            return without_connection(act)
        if isinstance(act, Sql):
            return connection.execute(act)
        if isinstance(act, Call):
            return self._call(act, connection)
        if isinstance(act, Pause):
            time.sleep(act.seconds)
        elif isinstance(act, Begin):
            self.begun_at = time.monotonic()
            return connection.begin_with(act.first)
        elif isinstance(act, Commit):
            self._ending(connection)
            connection.commit_with(act.gate)
            self._leave()
        elif act is Do.COMMIT:
            self._ending(connection)
            connection.commit()
            self._leave()
        elif act is Do.ROLLBACK:
            self._ending(connection)
            connection.rollback()
            self._leave()
            if not connection.usable():
                self.close()  # what a handler left running may hold the driver's lock for ever
        elif act is Do.FENCE:
            self._fence()
        elif act is Do.QUIET:
            self._quiet()
        else:
            self._loud()
        return None

    def _leave(self) -> None:
        # After our own COMMIT or ROLLBACK: what SQLAlchemy then rolls back is nothing.
        if self._sessions is not None:
            self._sessions.end()

    def _call(self, act: Call, connection: Connection) -> Called:
        delivery = act.deliveries[0]
        handler = delivery.handler
        assert handler is not None
        assert delivery.message is not None
        assert self._tools is not None
        guard = guard_of(connection.driver)
        enter = act.enter
        scope: RunScope
        if enter is None:
            guard.guard(True)
            scope = BatchScope(self._tools, act.deliveries) if handler.batch else RunScope(self._tools, delivery)
        else:
            def begin() -> None:
                drive(enter(delivery), self)
                guard.guard(True)

            scope = EffectsScope(self._tools, delivery, begin)
        context: Context[Any] | BatchContext[Any]
        attempt, resources = delivery.attempts + 1, self.resources
        if handler.batch:
            handed: Any = [one.event for one in act.deliveries]
            context = BatchContext(scope, messages=messages_of(act.deliveries), attempt=attempt, resources=resources)
        else:
            handed = delivery.event
            context = Context(scope, message=delivery.message, attempt=attempt, resources=resources)
        call = self._handlers.get(id(handler))
        if call is None:
            call = self._handlers[id(handler)] = self._chain(handler.function, handler.takes_context)
        error: BaseException | None = None
        self.scope, self.running = scope, (act.deliveries, time.monotonic())
        try:
            call(handed, context)
            if scope.open_session is not None:
                scope.open_session.flush()
        except BaseException as raised:
            error = raised
        finally:
            self.running = None
        if self._abandoned.is_set():
            raise Released("the run took too long and was given up")
        if scope.open_session is not None:
            error = _closed(scope.open_session, error)
        if self._is_postgresql:
            signs_of_life_end(connection)
        transaction = transaction_of(connection)
        usable = transaction is TransactionIs.OPEN or connection.usable()
        return Called(error, scope.drafts, transaction, usable, scope.begun, guard.tripped)

    def keep_alive(self, older_than_s: float) -> None:
        """From another thread: a statement in a transaction that has been open for a while, so that the database sees
        that this process is not frozen. Busy connections show it by themselves."""
        connection = self.connection
        if connection is None or not self._should_speak(older_than_s):
            return
        driver = connection.driver
        if driver.lock.locked() or driver.pgconn.pipeline_status:
            return
        with contextlib.suppress(driver.Error):  # a failed transaction, a lost connection: its own thread will see it
            driver.execute("select 1")

    def backend(self) -> list[int]:
        """The number of the database's process that serves this seat."""
        connection = self.connection
        return [connection.driver.info.backend_pid] if connection is not None and self._is_postgresql else []

    def abandon(self) -> None:
        """From another thread: the handler that runs now never gets to commit. Its statements fail, its transaction is
        rolled back by the database."""
        self._abandoned.set()
        self._unshare()
        connection = self.connection
        if connection is not None:
            _cut(connection)


def _nothing() -> None:
    pass


def _closed(session: Any, error: BaseException | None) -> BaseException | None:
    """Closes a handler's session. Its own trouble with closing counts only where nothing else went wrong."""
    try:
        session.close()
    except Exception as closing:
        return error if error is not None else closing
    return error


def _cut(connection: Connection) -> None:
    """Ends a connection that another thread is using. The server rolls back once it sees the end of the stream; a statement
    that runs there is cancelled, on a connection of its own, which nobody waits for."""
    fileno = getattr(connection.driver, "fileno", None)
    if fileno is not None:
        with contextlib.suppress(Exception):
            twin = socket.socket(fileno=os.dup(fileno()))
            twin.shutdown(socket.SHUT_RDWR)
            twin.close()
        threading.Thread(target=_cancel, args=(connection,), name="bothends-cancel", daemon=True).start()
        return
    _cancel(connection)
    with contextlib.suppress(Exception):
        guard_of(connection.driver).guard(False)
        connection.driver.rollback()
    with contextlib.suppress(Exception):
        connection.close()


def _cancel(connection: Connection) -> None:
    with contextlib.suppress(Exception):  # whatever is in the way, the connection's next statement fails
        connection.cancel()
