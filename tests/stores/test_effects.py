"""``once``: the matrix of outcomes, and a death between any two steps, on every store."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bothends import NOT_DONE, Permanent
from bothends.core.consuming import OutcomeUnknown
from bothends.core.effecting import EffectState, Move, next_move
from bothends.effects import Effects, effect_key
from bothends.errors import EffectNotAllowed, NotSent
from bothends.stores import Store, open_store
from bothends.stores.connection import Connection
from bothends.stores.steps import Result, Sql, run

LEASE_S = 4.0


@dataclass(frozen=True)
class Receipt:
    id: str


class Died(BaseException):
    """The process is gone: nothing after this runs."""


class Dying:
    """A connection of a process that dies at its n-th statement: before it, or after it."""

    def __init__(self, connection: Connection, at: int, after: bool) -> None:
        self.driver, self._connection, self._left, self._after = connection.driver, connection, at, after

    def execute(self, statement: Sql) -> Result:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Died
        result = self._connection.execute(statement)
        if self._left == 0:
            raise Died
        return result


class Gateway:
    """The other side: it may honour the key, fail before it acts, or fail after it."""

    def __init__(self, honours: bool = False) -> None:
        self.charged: list[str] = []
        self.calls = 0
        self.honours = honours
        self.before: list[BaseException] = []
        self.after: list[BaseException] = []

    def __call__(self, key: str) -> Receipt:
        self.calls += 1
        if self.before:
            raise self.before.pop(0)
        if not (self.honours and key in self.charged):
            self.charged.append(key)
        if self.after:
            raise self.after.pop(0)
        return Receipt(f"r-{key}")

    def find(self, key: str) -> Receipt | Any:
        return Receipt(f"r-{key}") if key in self.charged else NOT_DONE


@pytest.fixture(params=["sqlite", "pg15", pytest.param("pg18")])
def store(request: pytest.FixtureRequest) -> Store:
    name = {"sqlite": "sqlite_url", "pg15": "pg15_url", "pg18": "pg18_url"}[request.param]
    return open_store(request.getfixturevalue(name))


pytestmark = pytest.mark.needs("postgresql", "postgresql18")


@pytest.fixture
def connection(store: Store) -> Iterator[Connection]:
    opened = store.connect()
    yield opened
    opened.close()


@pytest.fixture
def message() -> str:
    return uuid.uuid4().hex


def effects(store: Store, message: str, worker: str = "w1", lease_s: float = LEASE_S) -> Effects:
    return Effects(
        store.effects, consumer=1, consumer_name="payments.charge", source="orders", message_id=message, worker=worker,
        lease_s=lease_s,
    )


def expire(store: Store, connection: Connection, message: str) -> None:
    """As if the lease had run out."""
    table = '"bothends".effects' if store.dialect == "postgresql" else "bothends_effects"
    ago = "clock_timestamp() - interval '1 second'" if store.dialect == "postgresql" else "0.0"
    connection.execute(Sql(f"update {table} set lease_until = {ago} where message_id = :id", {"id": message}))


def state(store: Store, connection: Connection, message: str) -> str:
    table = '"bothends".effects' if store.dialect == "postgresql" else "bothends_effects"
    return str(connection.execute(Sql(f"select state from {table} where message_id = :id", {"id": message})).rows[0][0])


def once(e: Effects, c: Any, call: Callable[[str], Any], if_unknown: Any = "hold", key: str | None = None) -> Any:
    return e.once(c, "charge", call, result=Receipt, key=key, if_unknown=if_unknown)


def test_a_completed_effect_is_not_called_again(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    first = once(effects(store, message), connection, gateway)
    again = once(effects(store, message, "w2"), connection, gateway)
    assert first == again == Receipt(f"r-{effect_key('payments.charge', 'orders', message, 'charge')}")
    assert gateway.calls == 1


def test_the_stored_form_comes_back_on_the_first_run_too(store: Store, connection: Connection, message: str) -> None:
    result = effects(store, message).once(
        connection, "n", lambda key: (1, 2), result=list[int], key=None, if_unknown="hold"
    )
    assert result == [1, 2]


def test_the_key_is_the_handlers_own_where_it_gives_one(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    once(effects(store, message), connection, gateway, key="charge-17")
    assert gateway.charged == ["charge-17"]


def test_a_key_that_changes_between_runs_is_refused(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    gateway.after = [TimeoutError()]
    with pytest.raises(TimeoutError):
        once(effects(store, message), connection, gateway, key="first", if_unknown="repeat")
    with pytest.raises(EffectNotAllowed, match="'first' before, and with 'second' now"):
        once(effects(store, message), connection, gateway, key="second", if_unknown="repeat")
    assert gateway.charged == ["first"]


@pytest.mark.parametrize("error", [Permanent("declined", reason="card_declined"), NotSent("no route")])
def test_a_definite_no_is_raised_and_a_later_run_may_call(
    store: Store, connection: Connection, message: str, error: Exception
) -> None:
    gateway = Gateway()
    gateway.before = [error]
    with pytest.raises(type(error)):
        once(effects(store, message), connection, gateway)
    assert state(store, connection, message) == ("refused" if isinstance(error, Permanent) else "not_sent")
    assert once(effects(store, message, "w2"), connection, gateway).id.startswith("r-")
    assert len(gateway.charged) == 1


def test_unknown_is_held(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    gateway.after = [TimeoutError("no answer")]
    with pytest.raises(TimeoutError):
        once(effects(store, message), connection, gateway)
    for worker in ("w1", "w2"):
        with pytest.raises(OutcomeUnknown, match="--effect charge=repeat"):
            once(effects(store, message, worker), connection, gateway)
    assert gateway.calls == 1
    assert state(store, connection, message) == "unknown"


def test_unknown_is_repeated_with_the_same_key(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway(honours=True)
    gateway.after = [TimeoutError(), ConnectionResetError()]
    for error in (TimeoutError, ConnectionResetError):
        with pytest.raises(error):
            once(effects(store, message), connection, gateway, "repeat")
    once(effects(store, message), connection, gateway, "repeat")
    assert gateway.calls == 3
    assert len(gateway.charged) == 1


@pytest.mark.parametrize("happened", [True, False])
def test_unknown_is_found_out(store: Store, connection: Connection, message: str, happened: bool) -> None:
    gateway = Gateway()
    (gateway.after if happened else gateway.before).append(TimeoutError())
    with pytest.raises(TimeoutError):
        once(effects(store, message), connection, gateway, gateway.find)
    once(effects(store, message), connection, gateway, gateway.find)
    assert len(gateway.charged) == 1
    assert gateway.calls == (1 if happened else 2)


def test_finding_out_may_fail_and_is_tried_again(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    gateway.after = [TimeoutError()]
    with pytest.raises(TimeoutError):
        once(effects(store, message), connection, gateway, gateway.find)

    def away(key: str) -> Receipt:
        raise ConnectionRefusedError

    with pytest.raises(ConnectionRefusedError):
        once(effects(store, message), connection, gateway, away)
    assert once(effects(store, message), connection, gateway, gateway.find) is not None
    assert len(gateway.charged) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_death_at_any_step_charges_once(store: Store, connection: Connection, message: str, at: int, after: bool) -> None:
    """Two statements write a plain effect; the process dies before or after each, another one takes over."""
    gateway = Gateway()
    with pytest.raises(Died):
        once(effects(store, message), Dying(connection, at, after), gateway, gateway.find)
    expire(store, connection, message)
    assert once(effects(store, message, "w2"), connection, gateway, gateway.find).id.startswith("r-")
    assert len(gateway.charged) == 1


def test_death_in_the_call_itself(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    gateway.after = [Died()]
    with pytest.raises(Died):
        once(effects(store, message), connection, gateway)
    assert state(store, connection, message) == "in_progress"
    expire(store, connection, message)
    with pytest.raises(OutcomeUnknown):
        once(effects(store, message, "w2"), connection, gateway)
    assert gateway.calls == 1


def test_a_call_that_another_live_worker_makes_is_waited_for(store: Store, connection: Connection, message: str) -> None:
    """The second worker neither calls nor gives up: it gets the first one's result."""
    entered, leave = threading.Event(), threading.Event()
    calls: list[str] = []

    def slow(key: str) -> Receipt:
        calls.append(key)
        entered.set()
        assert leave.wait(20)
        return Receipt("r-1")

    def second() -> None:
        other = store.connect()
        try:
            got.append(once(effects(store, message, "w2"), other, slow))
        finally:
            other.close()

    got: list[Receipt] = []
    thread = threading.Thread(target=second)
    first = threading.Thread(target=lambda: got.append(once(effects(store, message, lease_s=LEASE_S), connection, slow)))
    first.start()
    assert entered.wait(20)
    thread.start()
    leave.set()
    first.join(20)
    thread.join(20)
    assert got == [Receipt("r-1")] * 2
    assert len(calls) == 1


def test_a_lease_that_is_renewed_does_not_run_out(store: Store, connection: Connection, message: str) -> None:
    running = effects(store, message)

    def call(key: str) -> Receipt:
        expire(store, connection, message)
        run(running.renewals(), connection)
        seen.append(run(store.effects.read((effect := running._running), worker="w2", lease_s=LEASE_S), connection).leased)
        assert effect is not None
        return Receipt("r")

    seen: list[bool] = []
    once(running, connection, call)
    assert seen == [True]
    assert list(running.renewals()) == []  # nothing runs any more


def test_a_lease_from_before_the_clock_stepped_back_is_expired(store: Store, connection: Connection, message: str) -> None:
    gateway = Gateway()
    gateway.after = [Died()]
    with pytest.raises(Died):
        once(effects(store, message, lease_s=3600), connection, gateway)
    once(effects(store, message, "w2"), connection, gateway, gateway.find)
    assert gateway.calls == 1


def test_a_zombies_result_does_not_replace_the_stored_one(store: Store, connection: Connection, message: str) -> None:
    """Its lease ran out while it called; the next worker repeated the call. Both get what was stored first."""
    other = store.connect()

    def overtaken(key: str) -> Receipt:
        expire(store, other, message)
        assert once(effects(store, message, "w2"), other, lambda k: Receipt("second"), "repeat") == Receipt("second")
        return Receipt("first")

    assert once(effects(store, message), connection, overtaken, "repeat") == Receipt("second")
    other.close()


def test_a_zombies_failure_does_not_touch_a_later_run(store: Store, connection: Connection, message: str) -> None:
    other = store.connect()

    def overtaken(key: str) -> Receipt:
        expire(store, other, message)
        once(effects(store, message, "w2"), other, lambda k: Receipt("second"), "repeat")
        raise TimeoutError

    with pytest.raises(TimeoutError):
        once(effects(store, message), connection, overtaken, "repeat")
    assert state(store, connection, message) == "completed"
    other.close()


def test_the_same_name_twice_in_one_run(store: Store, connection: Connection, message: str) -> None:
    one = effects(store, message)
    once(one, connection, Gateway())
    with pytest.raises(EffectNotAllowed, match="twice in one run"):
        once(one, connection, Gateway())


@pytest.mark.parametrize("name", ["", "x" * 101])
def test_names_and_keys_have_limits(store: Store, connection: Connection, message: str, name: str) -> None:
    with pytest.raises(EffectNotAllowed):
        effects(store, message).once(connection, name, Gateway(), result=Receipt, key=None, if_unknown="hold")
    with pytest.raises(EffectNotAllowed):
        once(effects(store, message), connection, Gateway(), key=name * 3)


def test_a_result_that_is_too_large_is_unknown_not_lost(store: Store, connection: Connection, message: str) -> None:
    with pytest.raises(EffectNotAllowed, match="store less"):
        once(effects(store, message), connection, lambda key: Receipt("x" * 1_000_000))
    assert state(store, connection, message) == "unknown"


def test_a_call_that_returns_not_done_is_a_bug_of_the_handler(store: Store, connection: Connection, message: str) -> None:
    with pytest.raises(TypeError, match="only if_unknown may"):
        once(effects(store, message), connection, lambda key: NOT_DONE)


async def test_coroutines(store: Store, message: str) -> None:
    connection = await store.connect_async()
    gateway = Gateway()
    gateway.after = [TimeoutError()]

    async def call(key: str) -> Receipt:
        await asyncio.sleep(0)
        return gateway(key)

    async def find(key: str) -> Any:
        return gateway.find(key)

    with pytest.raises(TimeoutError):
        await effects(store, message).once_async(connection, "charge", call, result=Receipt, key=None, if_unknown=find)
    got = await effects(store, message).once_async(connection, "charge", call, result=Receipt, key=None, if_unknown=find)
    assert got.id.startswith("r-")
    assert len(gateway.charged) == 1
    await connection.close()


def test_a_plain_effect_costs_two_statements(store: Store, connection: Connection, message: str) -> None:
    counted = Dying(connection, at=1_000_000, after=False)
    once(effects(store, message), counted, Gateway())
    assert 1_000_000 - counted._left == 2


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("if_unknown", ["hold", "repeat", "find_out"])
@pytest.mark.parametrize("known", list(EffectState))
def test_the_table_of_moves(known: EffectState, if_unknown: Any, leased: bool) -> None:
    move = next_move(known, leased=leased, if_unknown=if_unknown)
    if known is EffectState.COMPLETED:
        assert move is Move.RETURN
    elif known in (EffectState.NOT_SENT, EffectState.REFUSED):
        assert move is Move.CALL
    elif leased and known is EffectState.IN_PROGRESS:
        assert move is Move.WAIT
    else:
        assert move.value == {"hold": "hold", "repeat": "call", "find_out": "find_out"}[if_unknown]
