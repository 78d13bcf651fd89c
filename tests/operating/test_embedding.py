"""`service.running()`: ready on entry, drained on exit, no signals touched, failures make readiness fail."""

import asyncio
import signal
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bothends import AsyncContext, Context, Service, event
from bothends.brokers import open_broker
from bothends.errors import ConfigError
from bothends.operating.apps import of
from bothends.operating.embedding import problems
from bothends.operating.roles import Roles
from bothends.stores import open_store
from bothends.stores.schema import apply


@event("order.placed", key="order_id", topic="shop.events")
@dataclass(frozen=True)
class OrderPlaced:
    order_id: str


@pytest.fixture
def urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A database with our tables and a log with the topic."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOTHENDS_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("BOTHENDS_STOP_TIMEOUT_S", "10")
    found = {"database": f"sqlite:///{tmp_path / 'shop.db'}", "broker": f"embedded:///{tmp_path / 'events.db'}"}
    apply(open_store(found["database"]))
    broker = open_broker(found["broker"])
    broker.create_topic("shop.events", 2)
    broker.close()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("create table handled (id text)")
    return found


def place(service: Service, folder: Path, *ids: str) -> None:
    connection = sqlite3.connect(folder / "shop.db", timeout=10)
    for id_ in ids:
        with connection:
            connection.execute("delete from handled where id = 'begins a transaction'")
            service.outbox.add(connection, OrderPlaced(id_))
    connection.close()


def handled(folder: Path) -> list[str]:
    connection = sqlite3.connect(folder / "shop.db", timeout=10)
    rows = connection.execute("select id from handled order by id").fetchall()
    connection.close()
    return [row[0] for row in rows]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - in the database, which tells nobody
            await asyncio.sleep(0.02)


async def test_the_log_has_full_names_as_status_has(
    urls: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOTHENDS_GROUP_PREFIX", "eu-")
    caplog.set_level("INFO", "bothends")
    shop = Service("shop", **urls)
    stock = shop.consumer("stock")

    @stock.handle(OrderPlaced)
    def reserve(order: OrderPlaced, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into handled values (?)", (order.order_id,))

    app = of(shop)
    task = {"role": "both", "stop_timeout_s": 5.0}
    async with Roles(app, asyncio.get_running_loop()).crew(task, lambda: None) as crew:
        assert crew.describes["consumers"] == ["eu-shop.stock"]
    async with shop.running():
        place(shop, tmp_path, "o1")
        await until(lambda: handled(tmp_path) == ["o1"])
    named = {record.consumer for record in caplog.records if hasattr(record, "consumer")}
    assert named == {"eu-shop.stock"}


async def test_it_relays_and_handles_and_leaves_signals_alone(urls: dict[str, str], tmp_path: Path) -> None:
    shop = Service("shop", **urls)
    stock = shop.consumer("stock")

    @stock.handle(OrderPlaced)
    def reserve(order: OrderPlaced, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into handled values (?)", (order.order_id,))

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    assert problems(shop) == ["service shop is not running in this process"]
    async with shop.running():
        assert problems(shop) == []
        assert {number: signal.getsignal(number) for number in before} == before
        await asyncio.to_thread(place, shop, tmp_path, "a", "b")
        await until(lambda: handled(tmp_path) == ["a", "b"])
        with pytest.raises(ConfigError, match="running in this process already"):
            async with shop.running():
                pytest.fail("entered twice")
    assert problems(shop) == ["service shop is not running in this process"]
    async with shop.running():  # once more, after it has ended
        assert problems(shop) == []


async def test_coroutine_handlers_run_on_this_loop_with_the_lifespan(urls: dict[str, str], tmp_path: Path) -> None:
    loop, seen = asyncio.get_running_loop(), []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        seen.append("entered")
        yield "resource"
        seen.append("left")

    shop = Service("shop", lifespan=lifespan, **urls)
    stock = shop.consumer("stock")

    @stock.handle(OrderPlaced)
    async def reserve(order: OrderPlaced, ctx: AsyncContext[Any]) -> None:
        seen.append((order.order_id, ctx.resources, asyncio.get_running_loop() is loop))

    async with shop.running():
        await asyncio.to_thread(place, shop, tmp_path, "a")
        await until(lambda: len(seen) == 2)
    assert seen == ["entered", ("a", "resource", True), "left"]


async def test_only_the_relay(urls: dict[str, str], tmp_path: Path) -> None:
    shop = Service("shop", **urls)  # no consumer: that is fine for a service that only produces
    async with shop.running(workers=False):
        await asyncio.to_thread(place, shop, tmp_path, "a")
        broker = open_broker(urls["broker"])
        await until(lambda: sum(p.high for p in broker.lag("nobody", ["shop.events"])) == 1)
        broker.close()


async def test_what_can_never_work_is_said_on_entry(urls: dict[str, str]) -> None:
    shop = Service("shop", database=urls["database"])
    with pytest.raises(ConfigError, match="broker_url"):
        async with shop.running():
            pytest.fail("entered")
    with pytest.raises(ConfigError, match="nothing to run"):
        async with shop.running(relay=False, workers=False):
            pytest.fail("entered")
    with pytest.raises(ConfigError, match="no consumer"):
        async with Service("shop", **urls).running(relay=False):
            pytest.fail("entered")


async def test_a_failure_inside_the_block_still_drains(urls: dict[str, str]) -> None:
    shop = Service("shop", **urls)
    with pytest.raises(ValueError, match="the application's own"):
        async with shop.running(workers=False):
            raise ValueError("the application's own")
    assert problems(shop) == ["service shop is not running in this process"]


async def test_a_member_that_breaks_shows_in_readiness(urls: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from bothends.relay import Relay

    entered = threading.Event()

    def breaks(self: Relay, stop: Any, ready: Any, **_: Any) -> None:
        ready.set()
        entered.wait(30)
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Relay, "run", breaks)
    shop = Service("shop", **urls)
    async with shop.running(workers=False):
        entered.set()
        await until(lambda: bool(problems(shop)))
        assert "out of luck" in problems(shop)[0]
