"""The product's connections to a scratch database on PostgreSQL, over the seam of psycopg."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from bothends.stores import Store
from bothends.stores.connection import AsyncConnection, Connection
from bothends.stores.steps import Result, Sql
from bothends.testing.exploring.connections import Explored, ExploredAsyncConnection, ExploredConnection, Scene
from bothends.testing.exploring.psycopg_seam import Seam, link_of, lost

__all__ = ["ExploredPostgresqlStore"]


class _Psycopg(Explored):
    def __init__(self, inner: Any, scene: Scene, seam: Seam) -> None:
        super().__init__(inner, scene)
        self.seam = seam
        seam.adopt(self.driver)
        self.saying(False)

    def lost(self) -> Exception:
        return lost()

    def saying(self, ours: bool) -> None:
        link_of(self.driver).ours = ours

    def end(self) -> None:
        """The process ends it: in order, or in the middle of a transaction."""
        self.closed = True
        self.seam.let_go(self.driver)


class _ExploredPsycopg(_Psycopg, ExploredConnection):
    def close(self) -> None:
        self.end()


class _ExploredAsyncPsycopg(_Psycopg, ExploredAsyncConnection):
    async def lose(self) -> None:
        self.end()

    async def close(self) -> None:
        self.end()


class _Asking:
    """The relay's executor. What is asked ahead is answered by the server at that moment, and looked at later."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: Sql, /) -> Result:
        return self._connection.execute(statement)

    def ask(self, statement: Sql, /) -> Callable[[], Result]:
        try:
            result = self._connection.execute(statement)
        except Exception as error:
            return _raising(error)
        return lambda: result


def _raising(error: Exception) -> Callable[[], Result]:
    def answer() -> Result:
        raise error

    return answer


class _Relay:
    """The relay's steps, on connections that are watched: its own executor speaks to the driver past them."""

    executor = _Asking

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, group: str) -> Any:
        return getattr(self._inner, group)


class ExploredPostgresqlStore:
    """``inner`` with connections that pass the tape."""

    def __init__(self, inner: Store, scene: Scene, seam: Seam) -> None:
        self._inner, self._scene, self._seam = inner, scene, seam
        self.url, self.schema, self.dialect = inner.url, inner.schema, inner.dialect
        self._open: list[tuple[str, _Psycopg]] = []

    def __getattr__(self, group: str) -> Any:
        return getattr(self._inner, group)

    @cached_property
    def relay(self) -> Any:
        return _Relay(self._inner.relay)

    def connect(self, *, name: str = "bothends", factory: type[Any] | None = None) -> Connection:
        made = _ExploredPsycopg(self._inner.connect(name=name, factory=factory), self._scene, self._seam)
        self._open.append((self._scene.tape.process, made))
        return made

    async def connect_async(self, *, name: str = "bothends", factory: type[Any] | None = None) -> AsyncConnection:
        made = _ExploredAsyncPsycopg(await self._inner.connect_async(name=name, factory=factory), self._scene, self._seam)
        self._open.append((self._scene.tape.process, made))
        return made

    def end(self, process: str, *, died: bool) -> None:
        """The connections of a process end. Where it ``died`` the server loses them, and rolls back."""
        ended = [one for name, one in self._open if name == process]
        self._open = [(name, one) for name, one in self._open if name != process]
        if died:
            self._seam.drop([one.driver for one in ended])
        else:
            for one in ended:
                one.end()
