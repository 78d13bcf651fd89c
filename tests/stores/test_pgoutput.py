"""The log's rows are the table's rows: what pgoutput sends is decoded to what a poll reads, value by value."""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothends.core.relaying import DELAYED, EVERY_LANE, UNREADABLE, Cursor, Stream
from bothends.stores import open_store
from bothends.stores.postgresql.inserts import COLUMNS, LogUnreadable
from bothends.stores.postgresql.pgoutput import MESSAGE_SEQ, LogEnded, LogPage, PgOutput
from bothends.stores.postgresql.replication import Replication, ReplicationFailed
from bothends.stores.postgresql.slots import lsn_text, publication_of
from bothends.stores.schema import apply
from bothends.stores.steps import Sql, run
from tests.conftest import fresh_database

FIELDS = slice(3, 14)
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
rows = st.fixed_dictionaries({
    "source": texts, "type": texts, "topic": texts, "key": st.none() | st.binary(max_size=40),
    "body": st.none() | st.binary(max_size=300), "content_type": st.none() | texts,
    "time": st.just("2026-01-01T00:00:00.000000Z") | texts, "version": st.integers(1, 2**31 - 1),
    "attributes": st.none() | texts, "headers": st.none() | st.binary(max_size=40), "due_in_s": st.none() | st.just(3600),
})


class Both:
    """An outbox, a stream of its log, and a poll of its table."""

    def __init__(self, url: str) -> None:
        store: Any = open_store(url)
        apply(store)
        self.steps = store.relay
        self.connection = store.connect(factory=self.steps.connection_factory)
        self.writer = store.connect()
        run(self.steps.log(messages=False).slots.publish(), self.writer)
        self.log = Replication(url, "test")
        self.log.create("be_test_pgoutput", keeps=False)
        self.await_answer()
        self.decoder = PgOutput("bothends.bothends", messages=False, covers=None)
        self.log.start("be_test_pgoutput", 0, "bothends_outbox", self.decoder)
        self.await_answer()
        self.count = 0

    def await_answer(self) -> None:
        while self.log.answer() is None:
            select.select([self.log], [], [], 5)

    def add(self, batch: list[dict[str, Any]]) -> None:
        self.writer.begin()
        for row in batch:
            self.count += 1
            values = {"id": f"id {self.count}", **row}
            due = values.pop("due_in_s")
            names = ", ".join(values)
            marks = ", ".join(f":{name}" for name in values)
            later = "null" if due is None else f"clock_timestamp() + interval '{due} s'"
            self.writer.execute(Sql(
                f"insert into bothends.outbox ({names}, deliver_at) values ({marks}, {later})", values, rows=False))
        self.writer.commit()

    def streamed(self, count: int, limit: int = 1000) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        while len(found) < count:
            self.log.feed(0)  # we live
            select.select([self.log], [], [], 5)
            page: LogPage = self.log.page(limit)
            assert len(page.rows) <= limit
            found += page.rows
        return found

    def polled(self, above: int) -> list[tuple[Any, ...]]:
        executor = self.steps.executor(self.connection)
        stream = Stream(EVERY_LANE, above, self.connection.execute(Sql("select pg_current_snapshot()::text")).rows[0][0])
        return list(run(self.steps.rows.fetch([stream], limit=1000), executor).rows)


@pytest.fixture(scope="module", params=["postgresql", "postgresql18"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    with fresh_database(request.getfixturevalue(f"{request.param}_url")) as url:
        made = Both(url)
        yield made
        made.log.close()
        made.connection.close()
        made.writer.close()


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.lists(rows, min_size=1, max_size=4), min_size=1, max_size=3), limit=st.integers(1, 5))
def test_a_row_of_the_log_is_the_row_of_the_table(both: Both, batches: list[list[dict[str, Any]]], limit: int) -> None:
    (last,) = both.writer.execute(Sql("select last_value - (not is_called)::int from bothends.outbox_seq")).rows[0]
    for batch in batches:
        both.add(batch)
    polled = both.polled(last)
    streamed = both.streamed(len(polled), limit)
    assert [row[1] for row in streamed] == [row[1] for row in polled]
    assert [row[FIELDS] for row in streamed] == [row[FIELDS] for row in polled]
    assert [row[2] for row in streamed] == [row[2] for row in polled]
    assert {row[2] for row in streamed} <= {0, DELAYED}


# Without a server

def _value(value: bytes | None) -> bytes:
    return b"n" if value is None else b"b" + struct.pack(">i", len(value)) + value


def _data(message: bytes) -> bytes:
    return b"w" + bytes(24) + message


def _relation(*names: str) -> bytes:
    columns = b"".join(b"\0" + name.encode() + b"\0" + bytes(8) for name in names)
    return _data(b"R" + struct.pack(">I", 7) + b"bothends\0outbox\0d" + struct.pack(">h", len(names)) + columns)


class Said:
    """What a server has sent, message by message."""

    def __init__(self, *messages: bytes, ended: bool = False) -> None:
        self._left, self._ended = list(messages), ended

    def __call__(self, _: int) -> tuple[int, memoryview]:
        if not self._left:
            return (-1 if self._ended else 0), memoryview(b"")
        message = self._left.pop(0)
        return len(message), memoryview(message)


def page(decoder: PgOutput, *messages: bytes, ended: bool = False) -> LogPage:
    return decoder.page(Said(*messages, ended=ended), lambda: None, 100)


def test_another_schema_s_columns_are_refused() -> None:
    with pytest.raises(LogUnreadable, match="apply the schema"):
        page(PgOutput("bothends.bothends", messages=False, covers=None), _relation("seq", "xid", "id"))


def test_another_outbox_of_the_database_is_not_this_one() -> None:
    """A publication for all tables shows it too: neither are its rows ours, nor are ours passed over for it."""
    decoder = PgOutput("bothends.other", messages=False, covers=None)
    page(decoder, _relation(*COLUMNS), _relation("seq", "xid", "id"))
    assert not page(decoder, _data(b"I" + struct.pack(">I", 7) + b"N" + bytes(80))).rows


def test_values_as_text_are_refused() -> None:
    decoder = PgOutput("bothends.bothends", messages=False, covers=None)
    row = b"I" + struct.pack(">I", 7) + b"N" + struct.pack(">h", 14) + b"b\0\0\0\x08" + bytes(8) + b"b\0\0\0\x08" + bytes(8)
    row += _value(b"id") + b"t\0\0\0\x01x"
    with pytest.raises(LogUnreadable, match="not binary"):
        page(decoder, _relation(*COLUMNS), _data(row + bytes(50)))


def test_the_end_of_the_stream_is_said() -> None:
    with pytest.raises(LogEnded):
        page(PgOutput("p", messages=False, covers=None), ended=True)


def test_others_messages_are_theirs_and_unreadable_ones_of_ours_are_named() -> None:
    decoder = PgOutput("p", messages=True, covers=None)

    def message(prefix: bytes, content: bytes) -> bytes:
        return _data(b"M\1" + struct.pack(">q", 99) + prefix + b"\0" + struct.pack(">i", len(content)) + content)

    assert page(decoder, message(b"q", b"x"), message(b"pp", b"x")).rows == []
    (row,) = page(decoder, message(b"p", b"x")).rows
    assert (row[1], row[2], row[3], row[8]) == (MESSAGE_SEQ + 99, UNREADABLE, b"63", b"x")


def test_a_marker_gives_its_cursor_once_and_ends_the_covering() -> None:
    decoder = PgOutput("p", messages=False, covers=lambda seq, xid, key: True)
    decoder.markers[b"1"] = Cursor(5, "9:9:")
    marker = _data(b"M\0" + struct.pack(">q", 99) + b"p.marker\0" + struct.pack(">i", 1) + b"1")
    found = page(decoder, marker)
    assert (found.cursor, found.position, decoder.markers, decoder.covers) == (Cursor(5, "9:9:"), 99, {}, None)
    assert page(decoder, marker).cursor is None


def test_a_keepalive_moves_the_position_and_may_want_an_answer() -> None:
    decoder = PgOutput("p", messages=False, covers=None)
    found = page(decoder, b"k" + struct.pack(">qqB", 77, 0, 1))
    assert (found.position, decoder.reply) == (77, True)
    assert page(decoder, b"k" + struct.pack(">qqB", 70, 0, 0)).position == 0  # never back


def test_places_are_written_as_the_server_writes_them() -> None:
    assert [lsn_text(n) for n in (0, 0x16B3748, 0x5_0000_00A1)] == ["0/0", "0/16B3748", "5/A1"]


@pytest.mark.needs("postgresql")
def test_what_the_server_refuses_has_its_code(postgresql_url: str) -> None:
    connection = Replication(postgresql_url, "test")
    connection.start("be_no_such_slot", 0, "p", PgOutput("p", messages=False, covers=None))

    def answer() -> None:
        while connection.answer() is None:
            select.select([connection], [], [], 5)

    with pytest.raises(ReplicationFailed) as caught:
        answer()
    assert caught.value.sqlstate == "42704"
    connection.close()
    with pytest.raises(ReplicationFailed):
        Replication("postgresql://postgres@127.0.0.1:1/postgres", "test")


@pytest.mark.parametrize("names", [("s" * 50 + "a", "s" * 50 + "b"), ("\u65e5" * 21, "\u65e5" * 20)])
def test_each_outbox_has_publications_of_its_own(names: tuple[str, str]) -> None:
    made = [publication_of(name, messages=messages) for name in names for messages in (False, True)]
    assert len({name.encode()[:63] for name in made}) == 4
    assert max(len(name.encode()) for name in made) <= 63
