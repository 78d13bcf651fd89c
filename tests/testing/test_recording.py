"""Unit tests of handlers, without a worker: what a context writes down and what it refuses."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from bothends import AsyncContext, Context, EffectNotAllowed, InvalidEvent, Message, MissingKey, Permanent, event
from bothends.testing.recording import async_batch_context, async_context, batch_context, context


@event("stock.updated", key="sku", topic="inventory.events")
@dataclass(frozen=True)
class StockUpdated:
    sku: str | None
    left: int


@dataclass(frozen=True)
class Receipt:
    id: str
    euros: Decimal = Decimal("1.10")


RECEIPT = Receipt("r-1")


class Database:
    """Stands for a session: a context only hands it on."""


def never_called(key: str) -> Receipt:
    raise AssertionError(f"called with {key}")


async def never_called_async(key: str) -> Receipt:
    raise AssertionError(f"called with {key}")


# An ordinary handler

def test_events_are_recorded_as_they_were_given() -> None:
    ctx = context(Database())
    ctx.emit(StockUpdated("brie", 3))
    assert ctx.emitted == [StockUpdated("brie", 3)]


def test_the_database_is_the_tests_own() -> None:
    database = Database()
    ctx: Context[Any] = context(database)
    assert ctx.session is database
    assert ctx.connection is database


def test_a_context_without_a_database_says_what_it_lacks() -> None:
    with pytest.raises(ValueError, match="give context"):
        context().session  # noqa: B018


def test_an_emitted_event_is_checked_at_once() -> None:
    ctx = context()
    with pytest.raises(InvalidEvent, match="left"):
        ctx.emit(StockUpdated("brie", "three"))  # type: ignore[arg-type]
    with pytest.raises(MissingKey):
        ctx.emit(StockUpdated(None, 3))
    assert ctx.emitted == []


def test_ids_are_the_same_on_every_run_and_differ_within_one() -> None:
    def run() -> list[str]:
        ctx = context()
        return [ctx.emit(StockUpdated("brie", left)) for left in (3, 2)]

    first = run()
    assert first == run()
    assert len(set(first)) == 2


def test_another_message_gives_other_ids() -> None:
    other = context(message=Message(id="m2", source="orders", type="order.created"))
    assert other.emit(StockUpdated("brie", 3)) != context().emit(StockUpdated("brie", 3))
    assert other.message.id == "m2"


def test_attempt_is_1_unless_told_otherwise() -> None:
    assert context().attempt == 1
    assert context(attempt=3).attempt == 3
    assert async_context(attempt=2).attempt == 2


def test_effects_are_refused_in_an_ordinary_handler() -> None:
    ctx = context(Database())
    with pytest.raises(EffectNotAllowed, match=r"ctx\.once.*effects=True"):
        ctx.once("charge", never_called, result=Receipt)
    with pytest.raises(EffectNotAllowed, match=r"ctx\.begin.*effects=True"):
        ctx.begin()
    with pytest.raises(EffectNotAllowed, match=r"ctx\.reading.*effects=True"):
        ctx.reading()
    assert ctx.effects == {}


async def test_effects_are_refused_in_an_ordinary_async_handler() -> None:
    ctx = async_context(Database())
    with pytest.raises(EffectNotAllowed, match="effects=True"):
        await ctx.once("charge", never_called_async, result=Receipt)
    with pytest.raises(EffectNotAllowed, match="effects=True"):
        await ctx.begin()
    with pytest.raises(EffectNotAllowed, match="effects=True"):
        ctx.reading()


# A handler with effects

def test_a_planned_effect_is_returned_and_not_called() -> None:
    ctx = context(effects={"charge": RECEIPT})
    assert ctx.once("charge", never_called, result=Receipt) == RECEIPT
    assert ctx.effects == {"charge": RECEIPT}


def test_a_planned_exception_is_raised() -> None:
    declined = Permanent("card declined", reason="card_declined")
    ctx = context(effects={"charge": declined})
    with pytest.raises(Permanent, match="declined"):
        ctx.once("charge", never_called, result=Receipt)
    assert ctx.effects == {"charge": declined}


def test_an_effect_that_is_not_planned_really_calls_with_a_stable_key() -> None:
    keys = []

    def call(key: str) -> Receipt:
        keys.append(key)
        return RECEIPT

    for _ in range(2):
        ctx = context(effects={})
        assert ctx.once("charge", call, result=Receipt) == RECEIPT
    assert keys[0] == keys[1]
    assert context(effects={}).once("charge", lambda key: key, result=str, key="charge-17") == "charge-17"


def test_two_effects_of_one_message_have_two_keys() -> None:
    ctx = context(effects={})
    assert ctx.once("a", lambda key: key, result=str) != ctx.once("b", lambda key: key, result=str)


def test_what_comes_back_is_the_stored_form_decoded() -> None:
    ctx = context(effects={})
    assert ctx.once("charge", lambda key: Receipt("r", Decimal("1.10")), result=Receipt) is not RECEIPT
    back = ctx.once("rates", lambda key: [Decimal("1.10")], result=list[Decimal])
    assert back == [Decimal("1.10")]
    assert str(back[0]) == "1.10"


def test_a_result_that_cannot_be_stored_is_refused_on_the_first_run_too() -> None:
    ctx = context(effects={})
    with pytest.raises(InvalidEvent):
        ctx.once("charge", lambda key: Receipt(id=17), result=Receipt)  # type: ignore[arg-type]


def test_a_failed_call_is_recorded_and_raised() -> None:
    ctx = context(effects={})
    with pytest.raises(AssertionError, match="called"):
        ctx.once("charge", never_called, result=Receipt)
    assert isinstance(ctx.effects["charge"], AssertionError)


def test_a_name_twice_in_one_run_is_refused() -> None:
    ctx = context(effects={"charge": RECEIPT})
    ctx.once("charge", never_called, result=Receipt)
    with pytest.raises(EffectNotAllowed, match="name of its own"):
        ctx.once("charge", never_called, result=Receipt)


def test_no_outside_call_after_begin() -> None:
    database = Database()
    ctx = context(database, effects={})
    with pytest.raises(EffectNotAllowed, match=r"before ctx\.begin"):
        ctx.session  # noqa: B018
    with ctx.reading() as reader:
        assert reader is database
    assert ctx.begin() is database
    assert ctx.session is database
    for refused in (lambda: ctx.once("charge", never_called, result=Receipt), ctx.reading, ctx.begin):
        with pytest.raises(EffectNotAllowed, match="begin"):
            refused()


async def test_the_same_for_coroutines() -> None:
    database = Database()

    async def charge(ctx: AsyncContext[Database]) -> None:
        async with ctx.reading() as reader:
            assert reader is database

        async def call(key: str) -> Receipt:
            return Receipt(key)

        receipt = await ctx.once("charge", call, key="charge-1", result=Receipt)
        planned = await ctx.once("mail", never_called_async, result=Receipt)
        assert await ctx.begin() is database
        ctx.emit(StockUpdated(receipt.id + planned.id, 1))

    ctx = async_context(database, effects={"mail": RECEIPT})
    await charge(ctx)
    assert ctx.emitted == [StockUpdated("charge-1r-1", 1)]
    assert ctx.effects == {"charge": Receipt("charge-1"), "mail": RECEIPT}
    with pytest.raises(EffectNotAllowed):
        await ctx.begin()


async def test_an_async_call_that_fails_is_recorded() -> None:
    ctx = async_context(effects={"lost": TimeoutError("no answer")})
    with pytest.raises(TimeoutError):
        await ctx.once("lost", never_called_async, result=Receipt)
    with pytest.raises(AssertionError):
        await ctx.once("charge", never_called_async, result=Receipt)
    assert set(ctx.effects) == {"lost", "charge"}


def test_no_outside_call_while_reading() -> None:
    ctx = context(Database(), effects={})
    with ctx.reading(), pytest.raises(EffectNotAllowed, match="leave the block"):
        ctx.once("charge", never_called, result=Receipt)
    assert ctx.once("charge", lambda key: RECEIPT, result=Receipt) == RECEIPT


@pytest.mark.parametrize(("name", "key"), [("", None), ("n" * 101, None), ("charge", ""), ("charge", "k" * 256)])
def test_names_and_keys_have_limits(name: str, key: str | None) -> None:
    ctx = context(effects={})
    with pytest.raises(EffectNotAllowed, match="characters"):
        ctx.once(name, never_called, result=Receipt, key=key)


# Batch handlers

def test_a_batch_context_knows_whose_event_each_is() -> None:
    database = Database()
    stock = [StockUpdated("brie", 1), StockUpdated("brie", 1)]
    ctx = batch_context(database, events=stock)
    ids = [ctx.emit(StockUpdated("gouda", n), cause=stock[n]) for n in (0, 1)]
    ids += [ctx.emit(StockUpdated("gouda", 2), cause=ctx.messages[0])]
    alone = batch_context(events=stock[:1])
    assert [alone.emit(StockUpdated("x", 0), cause=stock[0]), alone.emit(StockUpdated("x", 0), cause=stock[0])] == [
        ids[0], ids[2],
    ]
    assert len(set(ids)) == 3
    assert ctx.emitted == [StockUpdated("gouda", n) for n in (0, 1, 2)]
    assert ctx.connection is database
    assert [message.source for message in ctx.messages] == ["unit-test"] * 2
    assert batch_context(events=stock, attempt=2).attempt == 2


def test_a_cause_that_is_none_of_the_events_is_refused() -> None:
    stock = [StockUpdated("brie", 1)]
    ctx = batch_context(events=stock)
    with pytest.raises(InvalidEvent, match="none of this call's events"):
        ctx.emit(StockUpdated("gouda", 1), cause=StockUpdated("brie", 1))
    with pytest.raises(InvalidEvent, match=r"give ctx.messages\[n\]"):
        batch_context(events=stock * 2).emit(StockUpdated("gouda", 1), cause=stock[0])
    with pytest.raises(MissingKey):
        ctx.emit(StockUpdated(None, 1), cause=stock[0])
    assert ctx.emitted == []


def test_envelopes_are_one_for_each_event() -> None:
    own = [Message(id="m-1", source="s", type="t")]
    assert batch_context(events=[1], messages=own).messages == own
    with pytest.raises(ValueError, match="2 events have 1 messages"):
        batch_context(events=[1, 2], messages=own)


def test_a_batch_has_no_outside_calls() -> None:
    ctx: Any = batch_context(events=[1])
    with pytest.raises(EffectNotAllowed, match=r"ctx.once in a batch handler"):
        ctx.once("a", never_called, result=Receipt)
    with pytest.raises(AttributeError, match=r"ctx\.messages"):
        ctx.message  # noqa: B018


async def test_a_batch_of_a_coroutine() -> None:
    database = Database()
    ctx = async_batch_context(database, events=[1])
    assert ctx.session is database
    assert ctx.emit(StockUpdated("brie", 1), cause=ctx.messages[0])
    assert ctx.emitted == [StockUpdated("brie", 1)]
