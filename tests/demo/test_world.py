"""Where a run lives: its names, its environment, and that nothing of it stays."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends.demo import names
from bothends.demo.leftovers import sweep
from bothends.demo.proxies import Address
from bothends.demo.world import World
from bothends.stores.postgresql.pgoutput import PgOutput
from bothends.stores.postgresql.replication import Replication
from bothends.stores.postgresql.slots import SlotSteps, publication_of
from bothends.stores.steps import Sql, run


def test_names_of_runs_differ_and_fit_a_group_prefix() -> None:
    runs = {names.new_run() for _ in range(50)}
    assert len(runs) == 50
    assert all(len(f"{run}-") <= 20 and re.fullmatch(r"demo-[0-9a-f]{8}", run) for run in runs)
    assert names.schema_of("demo-1a", "orders") == "demo_1a_orders"
    assert names.topic_of("demo-1a", "orders") == "demo-1a.orders"


def test_every_service_has_a_database_of_its_own(tmp_path: Path) -> None:
    world = World("demo-1a", tmp_path)
    assert len({world.database_of(service) for service in names.SERVICES}) == 4
    assert world.embedded_broker
    assert world.broker_url == f"embedded:///{tmp_path}/log.db"
    assert world.lock_files("broker") == [tmp_path / "log.db"]
    assert len(world.lock_files("database")) == 4


def test_servers_have_no_lock_files(tmp_path: Path) -> None:
    world = World("demo-1a", tmp_path, "postgresql://a@db/x", "kafka://k:9092")
    assert (world.lock_files("broker"), world.lock_files("database")) == ([], [])
    assert not world.embedded_broker


def test_processes_get_the_proxies_addresses_and_the_demo_the_servers(tmp_path: Path) -> None:
    world = World("demo-1a", tmp_path, "postgresql://a@db:5433/x", "kafka://k:9092")
    proxies = {"database": Address("127.0.0.1", 4001), "broker": Address("127.0.0.1", 4002)}
    environ = world.environ(proxies)
    for service in names.SERVICES:
        assert environ[f"BOTHENDS_{service.upper()}_DATABASE_URL"] == "postgresql://a@127.0.0.1:4001/x"
    assert environ["BOTHENDS_BROKER_URL"] == "kafka://127.0.0.1:4002"
    assert environ["BOTHENDS_GROUP_PREFIX"] == "demo-1a-"
    assert world.database_of("orders") == "postgresql://a@db:5433/x"
    assert world.broker_url == "kafka://k:9092"


def test_a_long_folder_leaves_the_sockets_where_they_are(tmp_path: Path) -> None:
    world = World("demo-1a", tmp_path / ("x" * 60))
    assert "BOTHENDS_RUNTIME_DIR" not in world.environ({})


def test_preparing_twice_changes_nothing(fresh_world: World) -> None:
    fresh_world.prepare()
    assert fresh_world.sums() == {}
    assert fresh_world.broker.topic(fresh_world.topics["orders"]).partitions == 8


@pytest.fixture
def on_servers(tmp_path: Path, pg_database: str, kafka_url: str) -> World:
    return World(names.new_run(), tmp_path, pg_database, kafka_url)


def logs_of(world: World) -> set[str]:
    """Makes the slots and publications of the orders' outbox, as relays do; the slots' names."""
    connection = world.store("orders").connect()
    made: set[str] = set()
    for messages in (False, True):
        steps = SlotSteps(world.schema_of("orders"), messages=messages)
        run(steps.publish(), connection)
        made.add(run(steps.name(), connection))
    for slot in made:
        connection.execute(Sql("select pg_create_logical_replication_slot(:slot, 'pgoutput')", {"slot": slot}))
    connection.close()
    return made


def test_nothing_stays_on_servers_and_others_are_left_alone(on_servers: World, pg_database: str) -> None:
    other = World(names.new_run(), on_servers.folder, pg_database, on_servers.broker_url)
    on_servers.prepare()
    other.prepare()
    logs_of(on_servers)
    theirs = logs_of(other)
    on_servers.remove()
    with psycopg.connect(pg_database) as db:
        left = {row[0] for row in db.execute("select nspname from pg_namespace where nspname like 'demo%'").fetchall()}
        kept = {row[0] for row in db.execute(
            "select slot_name from pg_replication_slots where database = current_database()").fetchall()}
        published = {row[0] for row in db.execute("select pubname from pg_publication").fetchall()}
    assert left == {other.schema_of(service) for service in names.SERVICES}
    assert kept == theirs
    assert published == {publication_of(other.schema_of("orders"), messages=messages) for messages in (False, True)}
    assert on_servers.broker.topic(on_servers.topics["orders"]).state == "missing"
    assert other.broker.topic(other.topics["orders"]).state == "ok"
    other.remove()
    other.close()
    on_servers.close()


def slots(url: str) -> set[str]:
    with psycopg.connect(url) as db:
        return {row[0] for row in db.execute(
            "select slot_name from pg_replication_slots where database = current_database()").fetchall()}


def end(world: World) -> None:
    """What the server sees of a run that is killed; waits until it has seen it."""
    assert world.database
    with psycopg.connect(world.database) as db:
        ended = db.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s",
            [f"bothends {world.run}"])
        assert ended.fetchall() == [(True,)]


def test_slots_of_runs_that_were_killed_are_swept(on_servers: World, pg_database: str) -> None:
    """Not those of a run that goes on, nor what others have in the same database, nor one that is read."""
    other = World(names.new_run(), on_servers.folder, pg_database)
    on_servers.prepare_databases()
    other.prepare_databases()
    mine, theirs = logs_of(on_servers), logs_of(other)
    with psycopg.connect(pg_database, autocommit=True) as db:
        db.execute("create schema demo_shop")
        db.execute("select pg_create_logical_replication_slot('be_somebody_else', 'pgoutput')")
    assert sweep(pg_database) == []
    end(on_servers)
    assert set(sweep(pg_database)) == mine
    assert slots(pg_database) == theirs | {"be_somebody_else"}
    read = min(theirs)
    end(other)
    reader = Replication(pg_database, "still reading")
    reader.start(read, 0, "any", PgOutput("", messages=True, covers=None))
    while reader.answer() is None:
        pass
    assert set(sweep(pg_database)) == theirs - {read}
    reader.close()
    other.close()
    on_servers.close()


def test_removing_what_was_never_made_is_fine(on_servers: World) -> None:
    on_servers.remove()
    on_servers.close()


def test_one_database_url_serves_all_services_in_schemas(on_servers: World) -> None:
    on_servers.prepare_databases()
    for service in names.SERVICES:
        with on_servers.connected(service) as db:
            assert on_servers.shops[service].tables
            assert urlsplit(on_servers.database_of(service)).path == urlsplit(on_servers.database or "").path
            for table in on_servers.shops[service].tables:
                db.execute(f'select * from "{on_servers.schema_of(service)}".{table}')  # type: ignore[arg-type]
