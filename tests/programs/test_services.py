"""The programs that are processes: an API with its relay inside, and a worker of two consumers; PostgreSQL and Kafka."""

import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from bothends.brokers import open_broker
from bothends.message import Record
from bothends.ports import Broker, Outgoing
from bothends.stores import open_store
from bothends.stores.schema import apply
from tests.programs.processes import eventually, running

HERE = Path(__file__).parent


@pytest.fixture
def kafka(kafka_url: str) -> Iterator[Broker]:
    broker = open_broker(kafka_url)
    yield broker
    broker.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("events.py", "fastapi_orders.py", "models.py", "two_consumers.py"):
        shutil.copy(HERE / name, tmp_path / name)
    return tmp_path


def ends(broker: Broker, topic: str) -> dict[int, int]:
    return {lag.partition: lag.high for lag in broker.lag("bothends-tests-look", [topic])}


def since(broker: Broker, topic: str, begin: dict[int, int]) -> list[Record]:
    """Everything that came after ``begin``."""
    return [
        record for partition, offset in begin.items()
        for record in broker.read(topic, partition=partition, offset=offset, max_records=1000)
    ]


def publish(broker: Broker, *records: Outgoing) -> None:
    publisher = broker.publisher("bothends-tests")
    publisher.send(1, records)
    (report,) = eventually(lambda: publisher.poll(0.1))
    assert not report.failures
    publisher.close(5.0)


def test_an_api_publishes_what_it_has_committed(project: Path, pg_database: str, kafka: Broker, kafka_url: str) -> None:
    kafka.create_topic("orders.events", 8)
    begin = ends(kafka, "orders.events")
    apply(open_store(pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute(
            "create table orders (id uuid primary key, customer varchar not null, sku varchar not null,"
            " quantity integer not null, amount numeric not null)"
        )
    api = running(
        project, "-m", "uvicorn", "fastapi_orders:app", "--port", "0",
        DATABASE_URL=pg_database.replace("postgresql://", "postgresql+asyncpg://"),
        BOTHENDS_ORDERS_DATABASE_URL=pg_database, BOTHENDS_ORDERS_BROKER_URL=kafka_url,
    )
    with api as process:
        # It says so when it listens; "startup complete" comes before that.
        (url,) = re.findall(r"http://\S+", process.wait_for("Uvicorn running on"))
        request = urllib.request.Request(
            f"{url}/orders", method="POST", headers={"Content-Type": "application/json"},
            data=json.dumps({"customer": "anna", "sku": "brie", "quantity": 2, "amount": "29.00"}).encode(),
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201
            placed = json.load(answer)

        def arrived() -> list[Record]:
            return [r for r in since(kafka, "orders.events", begin) if dict(r.headers)["ce_id"] == placed["event"].encode()]

        (record,) = eventually(arrived)
        assert process.stop() in (0, -signal.SIGTERM)  # uvicorn raises the signal again when it has shut down
        assert any("Application shutdown complete" in line for line in process.said)
    assert record.key == placed["order"].encode()
    assert json.loads(record.value or b"") == {
        "order_id": placed["order"], "customer": "anna", "sku": "brie", "quantity": 2, "amount": "29.00",
    }
    with psycopg.connect(pg_database) as connection:
        assert connection.execute("select id, amount from orders").fetchall() == [(UUID(placed["order"]), 29)]


@pytest.fixture
def shipping_topics(kafka: Broker) -> Iterator[None]:
    """The topics of two_consumers.py, which no other program reads."""
    for topic in ("shipping.events", "legacy.shipments"):
        kafka.create_topic(topic, 2)
        eventually(lambda topic=topic: kafka.topic(topic).state == "ok")  # type: ignore[misc]
    yield
    for topic in ("shipping.events", "legacy.shipments"):
        kafka.delete_topic(topic)


@pytest.mark.usefixtures("shipping_topics")
def test_two_consumers_one_of_a_foreign_format(
    project: Path, pg_database: str, kafka: Broker, kafka_url: str, topic_prefix: str,
) -> None:
    apply(open_store(pg_database))
    with psycopg.connect(pg_database) as connection:
        connection.execute("create table mails (order_id text, carrier text)")
        connection.execute("create table bookings (id text, order_id text)")
    ours = [
        ("ce_id", b"e-1"), ("ce_source", b"shipping"), ("ce_type", b"shipment.sent"), ("ce_specversion", b"1.0"),
        ("content-type", b"application/json"),
    ]
    body = b'{"order_id": "17", "carrier": "post"}'
    foreign = b'{"shipmentId": "s-9", "orderNo": "18", "order_id": "18", "carrier": "rail"}'
    # Each one twice, as brokers do.
    records = [Outgoing("shipping.events", b"17", body, ours), Outgoing("legacy.shipments", None, foreign, [])]
    publish(kafka, *records, *records)
    work = running(
        project, "-m", "bothends", "work", "two_consumers", BOTHENDS_CRM_DATABASE_URL=pg_database,
        BOTHENDS_CRM_BROKER_URL=kafka_url, BOTHENDS_GROUP_PREFIX=topic_prefix[-20:],
    )

    def rows() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        with psycopg.connect(pg_database) as connection:
            return (
                connection.execute("select order_id, carrier from mails").fetchall(),
                connection.execute("select id, order_id from bookings").fetchall(),
            )

    with work as process:
        process.wait_for("ready")
        eventually(lambda: all(rows()))
        assert process.stop() == 0
    assert rows() == ([("17", "post")], [("s-9", "18")])


def test_processes_are_ended_even_when_a_test_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="no 'ready'"),
        running(tmp_path, "-c", "print('born'); raise SystemExit(3)") as process,
    ):
        process.wait_for("ready")
    assert process.process.returncode == 3
