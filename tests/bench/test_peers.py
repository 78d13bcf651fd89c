"""Peers: what is counted, what is said of one that cannot be measured, and that nothing of it stays behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import __main__ as command
from bench import page, peers, places, plots
from bench.peers import fetching, rounds
from bench.peers.namastack import murmur3, partition
from bench.peers.ours import Ours
from bench.peers.peer import BODY, BODY_BYTES, PROGRAMS, Peer, Site, Unavailable, body
from bench.peers.processes import Servers, group
from bench.peers.records import Arrived, Records, number, records
from bench.peers.rounds import Sizes, drop_slots, one_round

FIGURES = {
    "drain_per_s": 1000.0, "cpu_s": 20.0, "postgresql_cpu_s": 10.0, "kafka_cpu_s": 5.0, "rss_mb": 60.0, "swapped": 0,
    "again": 0, "p50_ms": 5.0, "p99_ms": 9.0,
}


class Pretended(Peer):
    """Its relay is what the test says."""

    name, version, settings, backlog, order = "pretended", "1.0", "none", 10, "none"
    insert = "insert into pretended select %(first)s, %(last)s"

    def __init__(self, program: str) -> None:
        self._program = program

    def prepare(self, site: Site, connection: psycopg.Connection[Any]) -> None:
        connection.execute("create table pretended (first bigint, last bigint)")

    def command(self, site: Site) -> Sequence[str | Path]:
        return [sys.executable, "-c", self._program]


class Message:
    """As a consumer gives them."""

    def __init__(self, event: int, at_ms: int) -> None:
        self._event, self._at_ms = event, at_ms

    def value(self) -> bytes:
        return body(self._event)

    def timestamp(self) -> tuple[int, int]:
        return 2, self._at_ms


def arrived(*events: int) -> Arrived:
    found, last = Arrived(), dict[int, int]()
    for at_ms, event in enumerate(events, 5000):
        Records._take(Message(event, at_ms), found, last)
    return found


@pytest.mark.parametrize(("value", "event"), [
    (body(17), 17), (b'{"n": "0000000017", "note": "x"}', 17), (b'{"payload":"{\\"n\\":\\"0000000017\\"}"}', 17),
    (b"x", -1), (b"", -1), (None, -1),
])
def test_an_event_is_known_in_whatever_a_peer_makes_of_its_body(value: bytes | None, event: int) -> None:
    assert number(value) == event


@pytest.mark.needs("postgresql")
def test_the_body_is_the_same_in_sql(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url) as connection:
        row = connection.execute(f"select {BODY} from generate_series(42, 42) g".encode()).fetchone()
    assert row == (body(42).decode(),)
    assert len(body(42)) == BODY_BYTES


def test_order_is_per_key_and_repetitions_are_no_disorder() -> None:
    assert arrived(1, 2, 1001, 1002, 1).swapped == 0
    found = arrived(1001, 2, 1, 1001)
    assert (found.swapped, found.records, found.events) == (1, 4, {1, 2, 1001})
    assert (found.first_ms, found.last_ms, found.seconds) == (5000, 5003, 0.003)


@pytest.mark.parametrize(("data", "value"), [
    (b"", 0), (b"\x00\x00\x00\x00", 0x2362F9DE), (b"\x21\x43\x65\x87", 0xF55B516B), (b"\x21\x43\x65", 0x7E4A8634),
    (b"\x21", 0x72661CF4),
])
def test_namastacks_partitions_are_by_murmur3(data: bytes, value: int) -> None:
    assert murmur3(data) == value
    assert 0 <= partition(data.hex()) < 256


def test_every_peer_of_another_says_what_it_is_and_is_pinned() -> None:
    assert set(peers.GOALS) <= set(peers.ALL)
    assert set(peers.PEERS_QUICK) <= set(peers.ALL)
    for name, peer in peers.ALL.items():
        assert peer.name == name
        assert all((peer.version, peer.settings, peer.order, peer.durability, peer.backlog))
    for pins in PROGRAMS.glob("*.txt"):
        assert all(line.startswith("#") or line.count("==") == 1 for line in pins.read_text().splitlines())


def test_a_missing_interpreter_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fetching, "CACHE", tmp_path)
    monkeypatch.setattr(fetching, "PYTHONS", ("0.1",))
    with pytest.raises(Unavailable, match=r"no Python 0\.1"):
        fetching.python_with("walbox")


def test_what_was_fetched_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []
    monkeypatch.setattr(fetching, "CACHE", tmp_path)
    monkeypatch.setattr(fetching, "_interpreter", lambda: Path(sys.executable))
    monkeypatch.setattr(fetching, "_run", lambda words: calls.append(str(words[0])))
    assert fetching.python_with("pactix") == fetching.python_with("pactix")
    assert len(calls) == 2


def test_a_command_that_fails_is_a_reason() -> None:
    with pytest.raises(Unavailable, match="failed: what it said"):
        fetching._run([sys.executable, "-c", "print('what it said'); raise SystemExit(1)"])
    with pytest.raises(Unavailable, match="did not run"):
        fetching._run(["/no/such/program"])


BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
while time.process_time() < 0.3:
    pass
with open("ready", "w"):
    pass
sys.stdin.read()
"""


def test_a_group_is_measured_and_ended_as_a_whole(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    with group([sys.executable, "-c", BUSY], tmp_path, {}, tmp_path) as running:
        (tmp_path / "ready").read_text()  # when the program has opened it
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        assert running.cpu_s() >= 0.3 - 2 * tick_s  # of two processes, each told in whole ticks
        assert running.peak_mb() > 10
        assert len(list(running._members())) == 2
    assert not [fields for _, fields in running._members() if fields[0] != "Z"]


def test_a_relay_that_ends_is_told_with_its_log(tmp_path: Path) -> None:
    with group([sys.executable, "-c", "raise SystemExit('no such table')"], tmp_path, {}, tmp_path) as running:
        running.process.wait()
        with pytest.raises(Unavailable, match="status 1: no such table"):
            running.check()


@pytest.mark.needs("postgresql", "kafka")
def test_what_the_servers_have_used_only_grows(postgresql_url: str, kafka_url: str) -> None:
    with psycopg.connect(postgresql_url) as connection:
        servers = Servers(connection, kafka_url.removeprefix("kafka://"))
        before = servers.cpu_s()
        connection.execute("select sum(sqrt(g)) from generate_series(1, 300000) g")
        after = servers.cpu_s()
    assert all(b >= a >= 0 for a, b in zip(before, after, strict=True))


@pytest.fixture
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_START_S", 0.5)


@pytest.mark.needs("postgresql", "kafka")
@pytest.mark.usefixtures("swift")
@pytest.mark.parametrize(("program", "reason"), [
    ("raise SystemExit('no such table')", "ended with status 1: no such table"),
    ("import sys; print('waits', flush=True); sys.stdin.read()", "0 of 1 events published within 0.5 s"),
])
def test_a_peer_that_does_not_work_has_its_reason_in_the_result(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "ALL", {"pretended": Pretended(program)})
    found = peers.measure(1, True, ["pretended"])
    (row,) = found["table"]["rows"]
    assert reason in row["missing"]
    assert (found["figures"], found["goals"], row["figures"]) == ({}, [], {})


@pytest.mark.needs("postgresql")
def test_slots_go_with_their_database(postgresql_url: str) -> None:
    with psycopg.connect(postgresql_url, autocommit=True) as server, places.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("select pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        drop_slots(server, url.rpartition("/")[2])
        left = server.execute("select 1 from pg_replication_slots where database = %s", [url.rpartition("/")[2]]).fetchall()
    assert left == []


@pytest.mark.needs("postgresql", "kafka")
def test_ours_keeps_order_and_publishes_each_once() -> None:
    found = one_round(Ours("poll"), Sizes(backlog=300, live=100, seconds=0.2, warm_seconds=0.1))
    assert (found["swapped"], found["again"]) == (0, 0)
    assert found["p50_ms"] <= found["p99_ms"]


@pytest.mark.needs("kafka")
def test_a_topic_is_read_to_what_is_there(kafka_url: str) -> None:
    from confluent_kafka import Producer

    servers = kafka_url.removeprefix("kafka://")
    with records(servers) as topic:
        producer = Producer({"bootstrap.servers": servers})
        for event in range(20):
            producer.produce(topic.topic, body(event), b"%d" % (event % 3))
        producer.flush()
        found = topic.read([0] * 8)
        assert (found.events, found.records) == (set(range(20)), 20)
        assert topic.read(topic.ends()).records == 0


def test_goals_hold_ours_against_what_was_measured() -> None:
    ours = FIGURES | {"drain_per_s": 6000.0, "live_per_s": 4000.0}
    found = peers._goals({"ours-poll": [ours], "debezium": [FIGURES | {"live_per_s": 1000.0}], "pactix": [FIGURES]})
    assert [(goal["what"], goal["measured"], goal["met"]) for goal in found] == [
        ("ours-poll drain against debezium", 6.0, True), ("ours-poll live against debezium", 4.0, False),
        ("ours-poll drain against pactix", 6.0, False),
    ]


@pytest.fixture
def result() -> dict[str, Any]:
    sizes = Sizes(1000, 1000, 1, 1)
    found: peers.Rounds = {"ours-poll": [FIGURES | {"live_per_s": 900.0}], "pactix": [FIGURES | {"swapped": 3}]}
    table = peers._table(found, {"walbox": "it ended | so"}, ["ours-poll", "pactix", "walbox"], sizes)
    return {
        "bench": "peers", "title": "Peers", "how": "How.", "silent_on": "Not.", "setting": {"rounds": 1}, "goals": [],
        "series": {}, "figures": peers._figures(found), "table": table, "measured_at": "2026-01-01T00:00:00Z",
        "load": {"before": 0.1, "mean": 2.5, "max": 3.0, "seconds": 61.2},
    }


def test_the_page_has_a_row_for_each_peer(result: dict[str, Any]) -> None:
    text = page._bench(result, "results")
    rows = [line for line in text.splitlines() if line.startswith(("| ours-poll", "| pactix", "| walbox"))]
    assert "1,000 (1,000 to 1,000) | 900 (900 to 900) | – | – | 5 (5 to 5) |" in rows[0]
    assert "per key; none swapped" in rows[0]
    assert "9 (9 to 9) at 200/s" in rows[1]
    assert "3 swapped" in rows[1]
    assert "not measured: it ended / so" in rows[2]
    assert len({row.count("|") for row in rows}) == 1
    assert "- pactix: asyncpg" in text
    assert "](results/peers.svg)" in text


def test_the_plot_has_those_that_were_measured(result: dict[str, Any], tmp_path: Path) -> None:
    plots.peers(result, tmp_path / "peers.svg")
    assert (tmp_path / "peers.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(("arguments", "says"), [
    (["relay", "--only", "raw"], "--only goes with the one name peers"), (["--only", "raw"], "--only goes with"),
])
def test_only_is_for_peers(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert says in capsys.readouterr().err


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(SystemExit, match="no such peer: nobody; there are raw, "):
        peers.measure(1, True, ["nobody"])


@pytest.mark.needs("postgresql")
def test_ours_writes_the_same_event_as_a_row_and_as_a_message(tmp_path: Path) -> None:
    """What a message says is what the row has."""
    from bothends.stores.postgresql.messages import unpack

    with places.database() as url, psycopg.connect(url, autocommit=True) as connection:
        ours = Ours("poll")
        ours.prepare(Site(url, "somewhere", "", tmp_path, 1), connection)
        ours.write(connection, 42, 42)
        row = connection.execute(
            "select id, source, type, topic, key, body, content_type, time, version, headers from bothends.outbox").fetchone()
        connection.execute("create publication peers")
        connection.execute("select pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        message = Ours("message")
        message._topic = "somewhere"
        message.write(connection, 42, 42)
        log = connection.execute(
            "select data from pg_logical_slot_get_binary_changes(current_database(), null, null, 'proto_version', '1', "
            "'publication_names', 'peers', 'messages', 'true')").fetchall()
        connection.execute("select pg_drop_replication_slot(current_database())")
    assert row is not None
    id, source, type, topic, key, content, content_type, time, dataversion, _, headers = unpack(message._message(42, 42))[0]
    assert row == (id.decode(), source, type, topic, key, content, content_type, time.decode(), dataversion, headers)
    assert any(b"bothends.bothends\0" in data and message._message(42, 42) in data for (data,) in log)
