"""AsyncSeat: ``Seat`` for coroutine handlers, on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from bothends.contexts import AsyncBatchContext, AsyncContext
from bothends.core.consuming import HandlerTimeout
from bothends.stores.connection import AsyncConnection
from bothends.stores.steps import Sql
from bothends.worker.acts import Act, Acts, Begin, Call, Called, Commit, Do, Pause, Released, TransactionIs, drive_async
from bothends.worker.guards import Guard, GuardedSqlite, guard_of, guarded_class
from bothends.worker.scopes import AsyncEffectsScope, BatchScope, RunScope, Tools
from bothends.worker.seating import Seating, messages_of, signs_of_life_end_async, transaction_of, without_connection
from bothends.worker.sessions import AsyncSessions

if TYPE_CHECKING:
    from bothends.worker.engine import Plan

__all__ = ["AsyncSeat"]


class AsyncSeat(Seating):
    """Coroutine handlers, on the event loop that ``drive`` runs on."""

    def __init__(self, plan: Plan, **options: Any) -> None:
        super().__init__(plan, **options)
        self.connection: AsyncConnection | None = None
        self._sessions: AsyncSessions | None = None
        self._tools: Tools | None = None
        self._handlers: dict[int, Callable[[Any, Any], Any]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._guard: Guard | None = None
        self.cancelled = False
        """Set before the run is cancelled from outside, so that it is not taken for the handler's own."""

    async def connect(self) -> None:
        if self.connection is not None and self.connection.usable():
            return
        await self.close()
        plan = self.plan
        connection = await plan.store.connect_async(
            name=f"bothends {plan.consumer.name}", factory=guarded_class(plan.store.dialect, is_async=True),
        )
        try:
            factory = plan.consumer.service.session_factory
            if factory is not None:
                self._sessions = AsyncSessions(plan.consumer.name, factory, plan.store.dialect, connection.driver)
                await self._sessions.prepare()
        except BaseException:
            await connection.close()
            raise
        self.connection, self._guard = connection, guard_of(connection.driver)
        self._tools = Tools(plan, connection, self._sessions.make if self._sessions else None, self._join, self._leave)

    async def close(self) -> None:
        connection, self.connection, self._sessions, self._tools = self.connection, None, None, None
        guard, self._guard = self._guard, None
        if connection is None or guard is None:
            return
        guard.guarded = False
        with contextlib.suppress(Exception):
            await connection.close()
        if isinstance(guard, GuardedSqlite):
            guard.close()  # aiosqlite takes a refused close for a done one, and forgets what lies underneath

    async def drive(self, acts: Acts[None]) -> None:
        """As ``Seat.drive``."""
        self._loop = asyncio.get_running_loop()
        await self.connect()
        try:
            await drive_async(acts, self)
        except Released:
            raise
        except BaseException:
            if self._is_postgresql:
                await self.close()
            raise

    async def perform(self, act: Act) -> Any:
        try:
            return await self._perform(act)
        except asyncio.CancelledError as error:
            if not self.cancelled:
                raise
            raise self._released() from error

    def _released(self) -> Released:
        """What a cancellation from outside means for the acts, which roll back; the task itself goes on to do so."""
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
        return Released("the process is stopping, or the partition was given up")

    async def _perform(self, act: Act) -> Any:
        connection = self.connection
        if connection is None:
            return without_connection(act)
        if isinstance(act, Sql):
            return await connection.execute(act)
        if isinstance(act, Call):
            return await self._call(act, connection)
        if isinstance(act, Pause):
            await asyncio.sleep(act.seconds)
        elif isinstance(act, Begin):
            self.begun_at = time.monotonic()
            return await connection.begin_with(act.first)
        elif isinstance(act, Commit):
            self._ending(connection)
            await connection.commit_with(act.gate)
            await self._leave()
        elif act is Do.COMMIT:
            self._ending(connection)
            await connection.commit()
            await self._leave()
        elif act is Do.ROLLBACK:
            self._ending(connection)
            await connection.rollback()
            await self._leave()
            if not connection.usable():
                await self.close()
        elif act is Do.FENCE:
            self._fence()
        elif act is Do.QUIET:
            await asyncio.to_thread(self._quiet)
        else:
            await asyncio.to_thread(self._loud)
        return None

    def keep_alive(self, older_than_s: float) -> None:
        """As ``Seat.keep_alive``; the statement is sent by the event loop, so a blocked loop is silent."""
        if self._loop is not None and self._should_speak(older_than_s):
            asyncio.run_coroutine_threadsafe(self._speak(), self._loop)

    async def _speak(self) -> None:
        connection = self.connection
        if connection is None or connection.driver.lock.locked() or connection.driver.pgconn.pipeline_status:
            return
        with contextlib.suppress(connection.driver.Error):
            await connection.driver.execute("select 1")

    def backend(self) -> list[int]:
        """As ``Seat.backend``."""
        connection = self.connection
        return [connection.driver.info.backend_pid] if connection is not None and self._is_postgresql else []

    async def _join(self) -> None:
        if self._sessions is not None:
            await self._sessions.join()

    async def _leave(self) -> None:
        if self._sessions is not None:
            await self._sessions.end()

    async def _call(self, act: Call, connection: AsyncConnection) -> Called:
        delivery = act.deliveries[0]
        handler = delivery.handler
        assert handler is not None
        assert delivery.message is not None
        assert self._tools is not None
        guard = guard_of(connection.driver)
        enter = act.enter
        scope: RunScope
        if enter is None:
            await self._join()
            guard.guard(True)
            scope = BatchScope(self._tools, act.deliveries) if handler.batch else RunScope(self._tools, delivery)
        else:
            async def begin() -> None:
                await drive_async(enter(delivery), self)
                await self._join()
                guard.guard(True)

            scope = AsyncEffectsScope(self._tools, delivery, begin)
        context: AsyncContext[Any] | AsyncBatchContext[Any]
        attempt, resources = delivery.attempts + 1, self.resources
        if handler.batch:
            handed: Any = [one.event for one in act.deliveries]
            context = AsyncBatchContext(scope, messages=messages_of(act.deliveries), attempt=attempt, resources=resources)
        else:
            handed = delivery.event
            context = AsyncContext(scope, message=delivery.message, attempt=attempt, resources=resources)
        call = self._handlers.get(id(handler))
        if call is None:
            call = self._handlers[id(handler)] = self._chain(handler.function, handler.takes_context)
        self.scope, self.running = scope, (act.deliveries, time.monotonic())
        try:
            error = await self._bounded(lambda: call(handed, context), scope)
        finally:
            self.running = None
        if scope.open_session is not None:
            try:
                await scope.open_session.close()
            except Exception as closing:
                error = error if error is not None else closing
        tripped = guard.tripped
        if tripped and self.plan.store.dialect == "sqlite":
            await self.close()
            return Called(error, scope.drafts, TransactionIs.ENDED, False, scope.begun, True)
        if self._is_postgresql:
            await signs_of_life_end_async(connection)
        transaction = transaction_of(connection)
        usable = transaction is TransactionIs.OPEN or connection.usable()
        return Called(error, scope.drafts, transaction, usable, scope.begun, tripped)

    async def _bounded(self, begin: Callable[[], Awaitable[Any]], scope: RunScope) -> BaseException | None:
        """Awaits a handler, for at most ``timeout_s``; what it raised. Middleware that is no coroutine function raises
        before there is anything to await."""
        timeout_s = self.plan.consumer.timeout_s
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                await begin()
                if scope.open_session is not None:
                    await scope.open_session.flush()
        except TimeoutError as error:
            return HandlerTimeout(f"the handler ran longer than timeout_s={timeout_s:g}") if limit.expired() else error
        except asyncio.CancelledError as error:
            if self.cancelled:
                raise self._released() from error
            return error
        except BaseException as error:
            return error
        return None


