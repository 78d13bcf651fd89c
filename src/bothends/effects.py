"""Effects: ``ctx.once``, calls to systems outside the database.

"In progress" is committed before the call, "completed" with the result after it; a later run of the message gets the
stored result and does not call. What is in between when a process dies is *unknown*, and ``if_unknown`` says what is done
about it. The decision is ``core/effecting.py``; the order of things is one generator, for handlers of both kinds.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Callable, Generator
from typing import Any, Literal, NamedTuple

from bothends.codecs.json import Codec, codec_for
from bothends.core.consuming import OutcomeUnknown, describe_error
from bothends.core.effecting import EffectState, Move, next_move
from bothends.errors import EffectNotAllowed, NotSent, Permanent
from bothends.events import NotDone
from bothends.stores.connection import AsyncConnection, Connection
from bothends.stores.postgresql.effects import EffectKey, EffectRow
from bothends.stores.steps import Sql, Steps

__all__ = ["KEY_MAX", "NAME_MAX", "RESULT_MAX", "Effects", "effect_key"]

NAME_MAX = 100
KEY_MAX = 255
RESULT_MAX = 900_000
"""Bytes of a stored result."""
_WAIT_S = 0.1
_SPACE = uuid.UUID("5f0c9d4e-6c2b-5d0e-9d52-3c8a1c1f7b11")

IfUnknown = Literal["hold", "repeat"] | Callable[[str], Any]


def effect_key(consumer: str, source: str, id: str, name: str) -> str:
    """The idempotency key where the handler gives none: the same on every run of the message (UUIDv5)."""
    return str(uuid.uuid5(_SPACE, "\n".join((consumer, source, id, name))))


class _Ask(NamedTuple):
    """Run a function of the user's, and send back what it returns (awaited, where it is a coroutine)."""

    function: Callable[[str], Any]
    key: str


class _Pause(NamedTuple):
    seconds: float


_Script = Generator[Sql | _Ask | _Pause, Any, Any]


class Effects:
    """The effects of one run of one message. One thread at a time, except ``renewals``.

    ``group`` is ``store.effects``; ``consumer`` its number and ``consumer_name`` its name; ``worker`` names this process,
    unlike any other that is or was; ``lease_s`` is how long "in progress" is believed without a renewal.
    """

    def __init__(
        self, group: Any, *, consumer: int, consumer_name: str, source: str, message_id: str, worker: str, lease_s: float
    ) -> None:
        self._group = group
        self._consumer, self._consumer_name = consumer, consumer_name
        self._source, self._message_id = source, message_id
        self._worker, self._lease_s = worker, lease_s
        self._used: set[str] = set()
        self._running: EffectKey | None = None

    def once(
        self, connection: Connection, name: str, call: Callable[[str], Any], *, result: type[Any], key: str | None,
        if_unknown: IfUnknown,
    ) -> Any:
        """``ctx.once`` on a connection that is in no transaction. Raises what ``call`` raises, EffectNotAllowed, and
        OutcomeUnknown (``if_unknown="hold"``)."""
        script = self._once(name, call, result, key, if_unknown)
        try:
            wanted = next(script)
            while True:
                try:
                    answer = _perform(connection, wanted)
                except BaseException as error:
                    wanted = script.throw(error)
                else:
                    wanted = script.send(answer)
        except StopIteration as done:
            return done.value

    async def once_async(
        self, connection: AsyncConnection, name: str, call: Callable[[str], Any], *, result: type[Any], key: str | None,
        if_unknown: IfUnknown,
    ) -> Any:
        """``once`` where ``call``, and ``if_unknown`` if it is a function, are coroutine functions."""
        script = self._once(name, call, result, key, if_unknown)
        try:
            wanted = next(script)
            while True:
                try:
                    answer = await _perform_async(connection, wanted)
                except BaseException as error:
                    wanted = script.throw(error)
                else:
                    wanted = script.send(answer)
        except StopIteration as done:
            return done.value

    def renewals(self) -> Steps[None]:
        """To be run each third of the lease while the handler runs: says that its call, if it is in one, is alive."""
        running = self._running
        if running is not None:
            yield from self._group.renew(running, worker=self._worker, lease_s=self._lease_s)

    def _once(self, name: str, call: Callable[[str], Any], kind: type[Any], key: str | None, if_unknown: IfUnknown) -> _Script:
        self._check(name, key)
        codec: Codec = codec_for(kind)  # type: ignore[arg-type]
        effect = EffectKey(self._consumer, self._source, self._message_id, name)
        wanted_key = key if key is not None else effect_key(self._consumer_name, self._source, self._message_id, name)
        run: int | None = yield from self._group.start(
            effect, key=wanted_key, worker=self._worker, lease_s=self._lease_s
        )
        if run is None:
            stored = yield from self._take_over(effect, wanted_key, if_unknown, codec)
            if not isinstance(stored, int):
                return codec.decode(stored)
            run = stored
        made: bytes = yield from self._call(effect, wanted_key, call, codec, run)
        return codec.decode(made)

    def _take_over(self, effect: EffectKey, key: str, if_unknown: IfUnknown, codec: Codec) -> Generator[Any, Any, int | bytes]:
        """What is known of the effect: its stored result, or the number of this run, which may call now."""
        kind: Literal["hold", "repeat", "find_out"] = "find_out" if callable(if_unknown) else if_unknown
        while True:
            row: EffectRow | None = yield from self._group.read(effect, worker=self._worker, lease_s=self._lease_s)
            if row is None:  # purged in between; only an operator can have done it
                run: int | None = yield from self._group.start(
                    effect, key=key, worker=self._worker, lease_s=self._lease_s
                )
                if run is not None:
                    return run
                continue
            if row.key != key:
                raise EffectNotAllowed(
                    f"ctx.once({effect.name!r}) was called with the idempotency key {row.key!r} before, and with {key!r} now: "
                    f"derive the key from the event alone, so that every run gives the same one"
                )
            move = next_move(EffectState(row.state), leased=row.leased, if_unknown=kind)
            if move is Move.RETURN:
                return _result_of(row, effect.name)
            if move is Move.WAIT:
                yield _Pause(_WAIT_S)
                continue
            claimed: int | None = yield from self._group.claim(
                effect, worker=self._worker, lease_s=self._lease_s, runs=row.runs
            )
            if claimed is None:
                continue
            if move is Move.HOLD:
                yield from self._end(effect, claimed, EffectState.UNKNOWN, row.error or "the worker died in the call")
                raise OutcomeUnknown(
                    f"whether {effect.name!r} (key {key}) has happened is not known: find out, then "
                    f"`bothends dead redrive ID --effect {effect.name}=repeat|not-done|done:JSON`"
                )
            if move is Move.CALL:
                return claimed
            found = yield from self._find_out(effect, claimed, key, if_unknown)
            if found is NotDone.NOT_DONE:
                return claimed
            return (yield from self._keep(effect, _encoded(codec, found, effect.name)))

    def _keep(self, effect: EffectKey, result: bytes) -> Generator[Any, Any, bytes]:
        """Writes "completed"; the result that counts: the first one that was written."""
        if (yield from self._group.complete(effect, result=result)):
            return result
        row = yield from self._group.read(effect, worker=self._worker, lease_s=self._lease_s)
        return _result_of(row, effect.name)

    def _find_out(self, effect: EffectKey, run: int, key: str, ask: Any) -> _Script:
        self._running = effect
        try:
            return (yield _Ask(ask, key))
        except Exception as error:
            yield from self._end(effect, run, EffectState.UNKNOWN, describe_error(error))
            raise
        finally:
            self._running = None

    def _call(self, effect: EffectKey, key: str, call: Callable[[str], Any], codec: Codec, run: int) -> _Script:
        self._running = effect
        try:
            value = yield _Ask(call, key)
            stored = _encoded(codec, value, effect.name)
        except Permanent as error:
            yield from self._end(effect, run, EffectState.REFUSED, describe_error(error))
            raise
        except NotSent as error:
            yield from self._end(effect, run, EffectState.NOT_SENT, describe_error(error))
            raise
        except Exception as error:  # a time-out, a reset, a bug after the answer: it may have happened
            yield from self._end(effect, run, EffectState.UNKNOWN, describe_error(error))
            raise
        finally:
            self._running = None
        return (yield from self._keep(effect, stored))

    def _end(self, effect: EffectKey, run: int, state: EffectState, error: str) -> Steps[None]:
        yield from self._group.fail(effect, worker=self._worker, runs=run, state=state.value, error=error)

    def _check(self, name: str, key: str | None) -> None:
        if not 0 < len(name) <= NAME_MAX:
            raise EffectNotAllowed(f"an effect's name has 1 to {NAME_MAX} characters, not {len(name)}")
        if name in self._used:
            raise EffectNotAllowed(f"ctx.once({name!r}) twice in one run: each effect needs a name of its own")
        if key is not None and not 0 < len(key) <= KEY_MAX:
            raise EffectNotAllowed(f"an idempotency key has 1 to {KEY_MAX} characters, not {len(key)}")
        self._used.add(name)


def _encoded(codec: Codec, value: Any, name: str) -> bytes:
    if value is NotDone.NOT_DONE:
        raise TypeError(f"the call of ctx.once({name!r}) returned NOT_DONE, which only if_unknown may")
    stored: bytes = codec.encode(value)
    if len(stored) > RESULT_MAX:
        raise EffectNotAllowed(f"the result of ctx.once({name!r}) has {len(stored)} bytes; {RESULT_MAX} at most: store less")
    return stored


def _result_of(row: EffectRow | None, name: str) -> bytes:
    if row is None or row.result is None:
        raise LookupError(f"the result of ctx.once({name!r}) is gone from the effects table: who deletes from it?")
    return bytes(row.result)


def _perform(connection: Connection, wanted: Sql | _Ask | _Pause) -> Any:
    if isinstance(wanted, Sql):
        return connection.execute(wanted)
    if isinstance(wanted, _Ask):
        return wanted.function(wanted.key)
    threading.Event().wait(wanted.seconds)
    return None


async def _perform_async(connection: AsyncConnection, wanted: Sql | _Ask | _Pause) -> Any:
    if isinstance(wanted, Sql):
        return await connection.execute(wanted)
    if isinstance(wanted, _Ask):
        answer = wanted.function(wanted.key)
        return await answer if inspect.isawaitable(answer) else answer
    await asyncio.sleep(wanted.seconds)
    return None
