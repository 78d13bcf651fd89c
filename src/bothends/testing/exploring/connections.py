"""Connections as relay and workers get them in an exploration: each statement of the product passes the tape.

Watched is the seam between our steps and the driver (``stores.connection``). What a connection sends in one round trip (BEGIN
with the first statement, the gate with COMMIT) is two boundaries here, since the server does one after the other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from bothends.stores.steps import Result, Sql
from bothends.testing.exploring.boundaries import Crash, Fault, Kind
from bothends.testing.exploring.clock import Clock
from bothends.testing.exploring.statements import kind_of, writes
from bothends.testing.exploring.tape import Tape

__all__ = ["Explored", "ExploredAsyncConnection", "ExploredConnection", "Scene"]


class Scene(Protocol):
    """What probes need to know: the tape and the clock of the run that is on."""

    tape: Tape
    clock: Clock


class Explored(ABC):
    """What synchronous and asynchronous connections share."""

    def __init__(self, inner: Any, scene: Scene) -> None:
        self.inner, self._scene = inner, scene
        self.driver: Any = inner.driver
        self.closed = False
        """Whether the process itself has closed it, or lost it."""

    @abstractmethod
    def lost(self) -> Exception:
        """The driver's error of a connection that is gone."""

    @abstractmethod
    def saying(self, ours: bool) -> None:
        """``ours``: what the driver is told from now on has passed the tape already."""

    def is_idle(self, text: str) -> bool:
        """Whether a statement is left out: it matters to nothing that is explored."""
        return False

    def in_transaction(self) -> bool:
        tape = self._scene.tape
        return not (tape.dead or tape.over) and self.usable() and bool(self.inner.in_transaction())

    def usable(self) -> bool:
        return not self.closed and bool(self.inner.usable())

    def _arrive(self, text: str) -> Fault | None:
        if self._scene.tape.dead or self._scene.tape.over:
            raise Crash
        kind = kind_of(text)
        durable = kind is Kind.COMMIT or (writes(text) and not self.in_transaction())
        return self._scene.tape.arrive(kind, text, durable=durable)


class ExploredConnection(Explored):
    def execute(self, statement: Sql, /) -> Result:
        if self.is_idle(statement.text):
            return Result([], 0)
        result: Result = self._through(statement.text, lambda: self.inner.execute(statement))
        return result

    def begin(self) -> None:
        self._through("begin", self.inner.begin)

    def begin_with(self, first: Sql, /) -> Result:
        self.begin()
        return self.execute(first)

    def commit(self) -> None:
        self._through("commit", self.inner.commit)

    def commit_with(self, gate: Sql, /) -> None:
        self.execute(gate)
        self.commit()

    def rollback(self) -> None:
        if self.in_transaction():
            self._through("rollback", self.inner.rollback)

    def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise self.lost()
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            self.close()
            raise self.lost()
        self.saying(True)
        try:
            result = do()
        finally:
            self.saying(False)
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            self.close()
            raise self.lost()
        return result

    def cancel(self) -> None:
        self.inner.cancel()

    @abstractmethod
    def close(self) -> None:
        """The database rolls back what was open."""


class ExploredAsyncConnection(Explored):
    async def execute(self, statement: Sql, /) -> Result:
        if self.is_idle(statement.text):
            return Result([], 0)
        result: Result = await self._through(statement.text, lambda: self.inner.execute(statement))
        return result

    async def begin(self) -> None:
        await self._through("begin", self.inner.begin)

    async def begin_with(self, first: Sql, /) -> Result:
        await self.begin()
        return await self.execute(first)

    async def commit(self) -> None:
        await self._through("commit", self.inner.commit)

    async def commit_with(self, gate: Sql, /) -> None:
        await self.execute(gate)
        await self.commit()

    async def rollback(self) -> None:
        if self.in_transaction():
            await self._through("rollback", self.inner.rollback)

    async def _through(self, text: str, do: Callable[[], Any]) -> Any:
        if not self.usable():
            raise self.lost()
        fault = self._arrive(text)
        if fault is Fault.FAILS:
            await self.lose()
            raise self.lost()
        self.saying(True)
        try:
            result = await do()
        finally:
            self.saying(False)
        if fault is Fault.CRASH_AFTER:
            self._scene.tape.die()
        if fault is Fault.HAPPENED:
            await self.lose()
            raise self.lost()
        return result

    @abstractmethod
    async def lose(self) -> None:
        """The connection is gone: the database rolls back what was open."""

    @abstractmethod
    async def close(self) -> None: ...
