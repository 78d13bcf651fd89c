"""``add`` through every handle: it commits, rolls back and rolls back to a savepoint with the business rows [P1][O1]."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bothends import DuplicateEventId, InvalidEvent, Service, Tombstone
from tests.stores.conftest import Look
from tests.stores.handles import POSTGRESQL, SQLITE, Held, HeldAsync

Opened = tuple[Held, Look]
EVERY = [
    *[pytest.param(("pg15_url", opener), id=name, marks=pytest.mark.needs("postgresql"))
      for name, opener in POSTGRESQL.items()],
    *[pytest.param(("sqlite_url", opener), id=name) for name, opener in SQLITE.items()],
]


@pytest.fixture(params=EVERY)
async def opened(request: pytest.FixtureRequest, look: Callable[[str], Look]) -> AsyncIterator[Opened]:
    fixture, opener = request.param
    url: str = request.getfixturevalue(fixture)
    manager: AbstractAsyncContextManager[Held] = opener(url)
    async with manager as held:
        yield held, look(url)


def business() -> tuple[str, str]:
    id = uuid.uuid4().hex
    return id, f"insert into business (id) values ('{id}')"


async def test_state_and_event_commit_together(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    event_id = await held.add(service, {"n": 1}, type="order.created", key="7")
    assert (look.ids, look.business(id)) == ([], 0)
    await held.commit()
    assert (look.ids, look.business(id)) == ([event_id], 1)


async def test_what_is_rolled_back_is_never_published(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    await held.add(service, {"n": 1}, type="order.created")
    await held.rollback()
    assert (look.ids, look.business(id)) == ([], 0)


async def test_a_rollback_to_a_savepoint_takes_its_event_and_no_other(opened: Opened, service: Service) -> None:
    held, look = opened
    _, insert = business()
    inner: list[str] = []

    async def body() -> None:
        inner.append(await held.add(service, {"n": 2}, type="order.created"))

    await held.execute(insert)
    first = await held.add(service, {"n": 1}, type="order.created")
    await held.savepoint(body, keep=False)
    await held.savepoint(body, keep=True)
    last = await held.add(service, {"n": 3}, type="order.created")
    await held.commit()
    assert look.ids == [first, inner[1], last]


async def test_the_outer_rollback_takes_a_released_savepoint_along(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()

    async def body() -> None:
        await held.add(service, {"n": 1}, type="order.created")

    await held.execute(insert)
    await held.savepoint(body, keep=True)
    await held.rollback()
    assert (look.ids, look.business(id)) == ([], 0)


async def test_the_same_id_twice_is_a_typed_error_and_the_transaction_goes_on(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    assert await held.add(service, {"n": 1}, type="order.created", id="mine") == "mine"
    with pytest.raises(DuplicateEventId, match="mine"):
        await held.add(service, {"n": 2}, type="order.created", id="mine")
    await held.commit()
    assert (look.ids, look.business(id)) == (["mine"], 1)
    id, insert = business()
    await held.execute(insert)
    with pytest.raises(DuplicateEventId):
        await held.add(service, {"n": 3}, type="order.created", id="mine")
    await held.commit()
    assert (look.ids, look.business(id)) == (["mine"], 1)


async def test_every_byte_comes_back(opened: Opened, service: Service) -> None:
    held, look = opened
    raw = bytes(range(256)) * 3_500  # 896,000 bytes
    headers = [("trace", b"\x00\xff"), ("ø", "👅".encode()), ("trace", b"")]
    _, insert = business()
    await held.execute(insert)
    await held.add(service, {"a": "x\0y", "k\0": "👅"}, type="wörd.👅", key="é👅", headers=headers, subject="it's")
    await held.add(service, raw, type="bulk", key="", content_type="application/x-thing")
    await held.add(service, Tombstone("gone", key="%s $1 :key ?"))
    await held.add(service, b"", type="empty")
    await held.add(service, b"null", type="null", topic="other.topic")
    await held.commit()
    assert look.column("body") == [b'{"a":"x\\u0000y","k\\u0000":"\xf0\x9f\x91\x85"}', raw, None, b"", b"null"]
    assert look.column("key") == ["é👅".encode(), b"", b"%s $1 :key ?", None, None]
    assert look.column("type") == ["wörd.👅", "bulk", "gone", "empty", "null"]
    assert look.column("topic") == [f"{service.name}.events"] * 4 + ["other.topic"]
    assert look.column("content_type") == ["application/json", "application/x-thing", None, None, None]
    assert look.column("attributes")[0] == '{"subject":"it\'s"}'
    from bothends.codecs.cloudevents import unpack_headers

    assert [unpack_headers(column) for column in look.column("headers")] == [headers, [], [], [], []]


async def test_a_refused_event_leaves_the_transaction_as_it_was(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    refused: list[tuple[Any, dict[str, Any]]] = [
        ({"n": float("nan")}, {"type": "a"}), ({"n": "\ud800"}, {"type": "a"}), ({}, {"type": "a", "topic": "a\0b"}),
        ({}, {"type": "a", "key": "k" * 1_001}), (b"x" * 900_001, {"type": "a"}), ({}, {}),
        ({}, {"type": "a", "headers": [("ce_id", b"")]}), ({}, {"type": "a\0"}), ({}, {"type": "a", "id": "\0"}),
    ]
    for event, options in refused:
        with pytest.raises(InvalidEvent):
            await held.add(service, event, **options)
    with pytest.raises(TypeError):
        await held.add(service, None)
    await held.commit()
    assert (look.ids, look.business(id)) == ([], 1)


async def test_the_handle_of_the_other_kind_names_the_right_method(opened: Opened, service: Service) -> None:
    held, look = opened
    if isinstance(held, HeldAsync):
        with pytest.raises(TypeError, match="add_async"):
            service.outbox.add(held.tx, {}, type="a")
    else:
        with pytest.raises(TypeError, match=r"outbox\.add\("):
            service.outbox.add_async(held.tx, {}, type="a")  # type: ignore[unused-coroutine]
    assert look.ids == []


async def test_many_events_in_their_order_and_one_transaction(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    events: list[object] = [{"n": n} for n in range(3)]
    pairs = [(event, {"type": "order.created", "key": str(n)}) for n, event in enumerate(events)]
    pairs += [
        (b"\x00\xff", {"type": "raw", "key": None, "headers": [("a", b"1")], "subject": "s", "content_type": "x/y"}),
        (Tombstone("order.created", key="9"), {}),
        ({"n": 5}, {"type": "late", "delay": timedelta(hours=1), "version": 2}),
        ({"n": 6}, {"type": "later", "deliver_at": datetime(2027, 1, 1, tzinfo=UTC), "topic": "elsewhere"}),
    ]
    ids = await held.add_many(service, iter(pairs))
    assert (look.ids, look.business(id)) == ([], 0)
    await held.commit()
    assert (look.ids, look.business(id)) == (ids, 1)
    assert look.column("type") == ["order.created"] * 3 + ["raw", "order.created", "late", "later"]
    assert [None if key is None else bytes(key) for key in look.column("key")] == [b"0", b"1", b"2", None, b"9", None, None]
    assert [None if body is None else bytes(body) for body in look.column("body")] == [
        b'{"n":0}', b'{"n":1}', b'{"n":2}', b"\x00\xff", None, b'{"n":5}', b'{"n":6}',
    ]
    assert look.column("version") == [1, 1, 1, 1, 1, 2, 1]
    assert [due is not None for due in look.column("deliver_at")] == [False] * 5 + [True] * 2
    assert look.column("topic")[-1] == "elsewhere"


async def test_more_than_one_statement_holds_and_none_at_all(opened: Opened, service: Service) -> None:
    held, look = opened
    _, insert = business()
    await held.execute(insert)
    assert await held.add_many(service, []) == []
    ids = await held.add_many(service, (({"n": n}, {"type": "n"}) for n in range(1_203)))
    await held.commit()
    assert len(ids) == 1_203
    assert look.ids == ids


async def test_of_many_one_that_is_wrong_leaves_nothing(opened: Opened, service: Service) -> None:
    held, look = opened
    id, insert = business()
    await held.execute(insert)
    good = ({"n": 1}, {"type": "n"})
    with pytest.raises(InvalidEvent) as caught:
        await held.add_many(service, [good, ({"n": 2}, {})])
    assert caught.value.__notes__ == ["it is number 1 (from 0) of add_many; nothing was written"]
    with pytest.raises(InvalidEvent, match=r"number 1 .*makes the ids itself"):
        await held.add_many(service, [good, ({"n": 2}, {"type": "n", "id": "7"})])
    with pytest.raises(InvalidEvent, match="knows no option 'topics'"):
        await held.add_many(service, [({"n": 2}, {"topics": "n"})])
    for wrong in (({"n": 2},), ({"n": 2}, "n"), (1, 2, 3)):
        with pytest.raises(TypeError, match="no pair"):
            await held.add_many(service, [wrong])
    await held.commit()
    assert (look.ids, look.business(id)) == ([], 1)
