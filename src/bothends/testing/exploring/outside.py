"""The outside world: recorded ports. What is called there has happened, whoever dies afterwards.

A port is an object of the test's own that stands in for a service that cannot be rolled back: a payment gateway, a mailer.
``recorded(port)`` gives an object with its methods; outside of an exploration it just passes calls on.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from bothends.errors import ConfigError
from bothends.testing.exploring.boundaries import Fault, Kind
from bothends.testing.exploring.tape import Tape

__all__ = ["KEY_NAMES", "WORLDS", "CallFailed", "OutsideCall", "OutsideWorld", "Recorded", "recorded"]

P = TypeVar("P")

KEY_NAMES = ("idempotency_key", "key", "request_id")
"""Parameters that are taken for an idempotency key where ``key=`` does not say."""
ARGUMENT_MAX = 200


class CallFailed(ConnectionError):
    """What a call raises that the explorer lets fail."""


@dataclass(frozen=True, slots=True)
class OutsideCall:
    """One call that has happened."""

    name: str
    """``gateway.charge``."""
    key: str | None
    """The idempotency key that it carried."""
    arguments: tuple[tuple[str, str], ...]
    reads: bool


class OutsideWorld:
    """The calls of one run, in order. ``passing`` is set while the explorer itself looks at a port."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.calls: list[OutsideCall] = []

    def call(self, call: OutsideCall, do: Callable[[], Any]) -> Any:
        def happen() -> Any:
            result = do()
            self.calls.append(call)
            return result

        return self.tape.through(Kind.CALL, self._said(call), happen, _failed, users=True, durable=not call.reads)

    async def call_async(self, call: OutsideCall, do: Callable[[], Any]) -> Any:
        fault = self.tape.arrive(Kind.CALL, self._said(call), users=True, durable=not call.reads)
        if fault is Fault.FAILS:
            raise _failed()
        result = await do()
        self.calls.append(call)
        if fault is Fault.CRASH_AFTER:
            self.tape.die()
        if fault is Fault.HAPPENED:
            raise _failed()
        return result

    @staticmethod
    def _said(call: OutsideCall) -> str:
        given = ", ".join(f"{name}={value}" for name, value in call.arguments)
        return f"{call.name}({given})"


def _failed() -> CallFailed:
    return CallFailed("the connection was reset (made by the crash explorer)")


class _Worlds:
    """Which world ports belong to now. One exploration runs in a process at a time (``clock.installed`` sees to it), and
    a port must find its run from any module and any thread."""

    now: OutsideWorld | None = None


WORLDS = _Worlds()


class Recorded:
    """A port and its record. Made by ``recorded``."""

    def __init__(self, port: Any, name: str, key: str | None, reads: frozenset[str]) -> None:
        self._port, self._name, self._key, self._reads = port, name, key, reads

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._port, name)
        if name.startswith("_") or not callable(value):
            return value
        return self._recording(name, value)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._recording("", self._port)(*arguments, **options)

    def __repr__(self) -> str:
        return f"recorded({self._port!r})"

    def _recording(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        label = f"{self._name}.{name}" if name else self._name

        def call(*arguments: Any, **options: Any) -> Any:
            world = WORLDS.now
            if world is None or not world.tape.running:
                return method(*arguments, **options)
            made = self._describe(label, name in self._reads, method, arguments, options)
            if inspect.iscoroutinefunction(method):
                return world.call_async(made, lambda: method(*arguments, **options))
            return world.call(made, lambda: method(*arguments, **options))

        return call

    def _describe(
        self, label: str, reads: bool, method: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
    ) -> OutsideCall:
        try:
            given = dict(inspect.signature(method).bind(*arguments, **options).arguments)
        except (TypeError, ValueError):  # a wrong call: the port says so itself
            given = {str(n): value for n, value in enumerate(arguments)} | options
        names = (self._key,) if self._key else KEY_NAMES
        key = next((str(given[name]) for name in names if given.get(name) is not None), None)
        shown = tuple((name, repr(value)[:ARGUMENT_MAX]) for name, value in given.items())
        return OutsideCall(label, key, shown, reads)

    # What the explorer asks for

    def state(self) -> Any:
        """A copy of what the port holds."""
        return copy.deepcopy(self.held())

    def put(self, state: Any) -> None:
        """A new world: the port holds this again."""
        held, fresh = self.held(), copy.deepcopy(state)
        if held is not None:
            held.clear()
            held.extend(fresh) if isinstance(held, list) else held.update(fresh)

    def held(self) -> Any:
        """The container in which the port holds it."""
        port = self._port
        return port if isinstance(port, list | dict | set) else getattr(port, "__dict__", None)


def recorded(port: P, *, name: str | None = None, key: str | None = None, reads: Iterable[str] = ()) -> P:
    """``port`` with its calls recorded while the explorer runs; a function may be given as well.

    ``key`` names the parameter that carries the idempotency key (without it, one called ``idempotency_key``, ``key`` or
    ``request_id``). ``reads`` names methods that change nothing outside. ``name`` is what a story calls it: the class's name.

    Calls with one key count once: the other side honours it, as yours must. What the port holds is put back before each run.
    Raises ConfigError for a method in ``reads`` that is not there.
    """
    called = name or (getattr(port, "__name__", None) or type(port).__name__).lower()
    wanted = frozenset(reads)
    if missing := sorted(one for one in wanted if not callable(getattr(port, one, None))):
        raise ConfigError(f"recorded({called}): reads= names {missing[0]!r}, which is no method of it")
    return cast(P, Recorded(port, called, key, wanted))
