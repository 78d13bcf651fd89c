"""What type checkers must see in the public API. Checked by ``test_programs.py``, never run."""

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, assert_type

import asyncpg
import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from bothends import (
    NOT_DONE,
    UNSET,
    AddOptions,
    AsyncBatchContext,
    AsyncContext,
    BatchContext,
    Consumer,
    Context,
    EventId,
    ForeignJson,
    Message,
    NotDone,
    Outbox,
    Service,
    Tombstone,
    event,
)


@event("order.created", version=2, key=lambda e: e.order_id, topic="orders.events", strict=True)
@dataclass(frozen=True)
class Created:
    order_id: str


@event("bare")
@dataclass
class Bare:
    a: int


service = Service("orders")
consumer = service.consumer("all", format=ForeignJson(type="t", id=ForeignJson.POSITION))
assert_type(Created("1"), Created)
assert_type(Created("1").order_id, str)
assert_type(service.outbox, Outbox)
assert_type(consumer, Consumer)
assert_type(service.running(), AbstractAsyncContextManager[None, bool | None])


def add(session: Session, raw: psycopg.Connection[Any], ctx: Context[Session]) -> EventId:
    assert_type(service.outbox.add(session, Created("1")), str)
    service.outbox.add(raw, b"", type="x", key=None, headers=[("a", b"1")])
    service.outbox.add(raw, {"a": 1}, type="x", key=UNSET)
    service.outbox.add(ctx, Bare(1))
    options: AddOptions = {"key": None, "headers": [("a", b"1")]}
    assert_type(service.outbox.add_many(raw, [Created("1"), (Bare(1), options)]), list[str])
    return service.outbox.add(session, Tombstone(Created, key="1"))


def add_async(session: AsyncSession, raw: asyncpg.Connection[Any], ctx: AsyncContext[Any]) -> Coroutine[Any, Any, str]:
    assert_type([service.outbox.add_many_async(session, [Created("1")])], list[Coroutine[Any, Any, list[str]]])
    pending = [service.outbox.add_async(raw, Bare(1)), service.outbox.add_async(ctx, Bare(1))]
    assert_type(pending, list[Coroutine[Any, Any, str]])
    return service.outbox.add_async(session, Created("1"))


@consumer.handle(Created)
def with_session(order: Created, ctx: Context[Session]) -> int:
    assert_type(ctx.session, Session)
    assert_type(ctx.message, Message)
    assert_type(ctx.message.body, bytes | None)
    assert_type(ctx.emit(Bare(1), key=None, topic="t"), str)
    assert_type(ctx.once("a", str.upper, result=str), str)
    return ctx.attempt


@consumer.handle(Bare, effects=True)
async def with_effects(bare: Bare, ctx: AsyncContext[AsyncSession]) -> None:
    async def call(key: str) -> Bare:
        return Bare(len(key))

    async def find(key: str) -> Bare | NotDone:
        return NOT_DONE

    async with ctx.reading() as db:
        assert_type(db, AsyncSession)
    assert_type(await ctx.once("a", call, result=Bare, if_unknown=find), Bare)
    assert_type(await ctx.begin(), AsyncSession)
    assert_type(ctx.session, AsyncSession)


batches = service.consumer("batches")


@batches.handle(Created, batch=True)
def set_based(orders: list[Created], ctx: BatchContext[Session]) -> int:
    assert_type(ctx.session, Session)
    assert_type(ctx.messages, list[Message])
    assert_type(ctx.emit(Bare(1), cause=orders[0], key=None, topic="t"), str)
    return ctx.attempt


@batches.handle(Bare, batch=True)
async def of_anything(all: Sequence[object], ctx: AsyncBatchContext[AsyncSession]) -> None:
    assert_type(ctx.session, AsyncSession)


@service.consumer("plain").handle(Bare, batch=True)
def without_context(all: list[Bare]) -> None: ...


assert_type(set_based, Callable[[list[Created], BatchContext[Session]], int])
assert_type(with_session, Callable[[Created, Context[Session]], int])
