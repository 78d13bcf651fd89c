"""The embedded broker: a log in a SQLite file, shared by the processes of one machine. Nothing to install, nothing to run.

``embedded:///events.log`` is relative to the working directory, ``embedded:////var/lib/shop/events.log`` absolute.
``?retention_days=7`` says how long records are kept (the default); ``retention_days=0`` keeps them for ever.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from bothends.brokers.embedded import groups, records
from bothends.brokers.embedded.file import LogFile
from bothends.brokers.logs.broker import LogBroker
from bothends.brokers.logs.log import Log, Member, Standing
from bothends.brokers.logs.refusing import refusals
from bothends.errors import Blame, ConfigError, PublishError
from bothends.message import Origin, Record
from bothends.ports import Outgoing, Partition

__all__ = ["EmbeddedBroker", "FileLog"]

LOG = logging.getLogger("bothends.brokers")

RETENTION_DAYS = 7.0
_EXPIRE_EVERY_S = 60.0
_WAIT_MIN_S = 0.002
_WAIT_MAX_S = 0.02
_TRIM_ROUNDS_MAX = 1_000_000
PROBE_BYTES = 256 * 1024
# Random, for pages that do not change are not written.
_PROBE = "insert into meta values ('probe', hex(randomblob(?))) on conflict (name) do update set value = excluded.value"


class FileLog:
    """See ``logs.Log``. Each user (publisher, member, broker) has one, with a connection of its own."""

    beat_s = 1.0

    def __init__(self, path: str, retention_s: float = math.inf) -> None:
        self._file = LogFile(path)
        self._retention_s = retention_s
        self._expire_at = 0.0

    def identity(self) -> str:
        with self._file.reading() as connection:
            return str(connection.execute("select value from meta where name = 'id'").fetchone()[0])

    def ping(self, timeout_s: float) -> None:
        """Writes, for a full disk lets a transaction begin: so much that there is room for a batch as well."""
        with self._file.writing(timeout_s) as connection:
            connection.execute(_PROBE, [PROBE_BYTES // 2])

    def partitions(self, topic: str) -> int:
        with self._file.reading() as connection:
            return records.topic_of(connection, topic)[1]

    def create(self, topic: str, partitions: int) -> bool:
        with self._file.writing() as connection:
            made = connection.execute(
                "insert into topics (name, partitions) values (?, ?) on conflict (name) do nothing", [topic, partitions]
            )
            if made.rowcount == 0:
                return False
            number_of_topic = records.topic_of(connection, topic)[0]
            connection.executemany(
                "insert into partitions (topic, number) values (?, ?)", [(number_of_topic, n) for n in range(partitions)]
            )
            return True

    def delete(self, topic: str) -> None:
        with self._file.writing() as connection:
            number_of_topic, _ = records.topic_of(connection, topic)
            for table in ("records", "partitions", "claims", "positions"):
                connection.execute(f"delete from {table} where topic = ?", [number_of_topic])
            connection.execute("delete from topics where id = ?", [number_of_topic])

    def append(self, batch: Sequence[Outgoing], timeout_s: float) -> dict[int, PublishError]:
        with self._file.writing(timeout_s) as connection:
            failures = refusals(batch, lambda topic: records.topic_of(connection, topic)[1])
            if not failures:
                records.append(connection, batch)
        try:
            self._expire_if_due()
        except PublishError as error:  # what was appended is appended; the old can wait
            LOG.debug("old records stay for now: %s", error)
        return failures

    def _expire_if_due(self) -> None:
        now = time.monotonic()
        if now < self._expire_at or math.isinf(self._retention_s):
            return
        with self._file.writing(0.0) as connection:
            more = records.expire(connection, int((time.time() - self._retention_s) * 1000))
        self._expire_at = now if more else now + _EXPIRE_EVERY_S

    def ends(self, topic: str) -> list[tuple[int, int]]:
        with self._file.reading() as connection:
            number_of_topic, _ = records.topic_of(connection, topic)
            return connection.execute(
                "select low, high from partitions where topic = ? order by number", [number_of_topic]
            ).fetchall()

    def read(self, partition: Partition, offset: int, max_records: int) -> list[Record]:
        with self._file.reading() as connection:
            return records.read(connection, partition, offset, max_records)

    def trim(self, partition: Partition, before: int) -> None:
        for _ in range(_TRIM_ROUNDS_MAX):
            with self._file.writing() as connection:
                number_of_topic, _count = records.topic_of(connection, partition.topic)
                if not records.trim(connection, number_of_topic, partition.number, before):
                    return

    def version(self) -> int:
        return self._file.data_version()

    def wait(self, version: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        pause_s = _WAIT_MIN_S
        while (left := deadline - time.monotonic()) > 0 and self._file.data_version() == version:
            time.sleep(min(pause_s, left))
            pause_s = min(pause_s * 1.5, _WAIT_MAX_S)

    # Groups

    def join(self, member: Member) -> None:
        with self._file.writing() as connection:
            groups.join(connection, member)

    def beat(self, member: Member) -> Standing:
        with self._file.writing() as connection:
            return groups.beat(connection, member)

    def store(self, member: Member, positions: dict[Partition, int]) -> None:
        with self._file.writing() as connection:
            groups.store(connection, member, positions)

    def give_up(self, member: Member, partitions: Sequence[Partition]) -> None:
        with self._file.writing() as connection:
            groups.give_up(connection, member, list(partitions))

    def leave(self, member: Member) -> None:
        with self._file.writing() as connection:
            groups.leave(connection, member)

    def positions(self, group: str, topic: str) -> dict[int, int]:
        with self._file.reading() as connection:
            number_of_topic, _ = records.topic_of(connection, topic)
            return dict(connection.execute(
                "select number, offset from positions where grp = ? and topic = ?", [group, number_of_topic]
            ).fetchall())

    def set_position(self, group: str, position: Origin) -> bool:
        with self._file.writing() as connection:
            if groups.live_members(connection, group):
                return False
            number_of_topic, partitions = records.topic_of(connection, position.topic)
            if position.partition >= partitions:
                raise PublishError(f"topic {position.topic!r} has no partition {position.partition}",
                                   blame=Blame.PLACE, reason="unknown_topic")
            connection.execute(
                "insert into positions values (?1, ?2, ?3, ?4) on conflict do update set offset = ?4",
                [group, number_of_topic, position.partition, position.offset],
            )
            return True

    def close(self) -> None:
        self._file.close()


class EmbeddedBroker(LogBroker):
    """See this module, and ``ports.Broker``."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url)
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query)) | options
        self._path = unquote(parts.path.removeprefix("/"))
        if parts.netloc or not self._path or self._path.endswith("/"):
            raise ConfigError(f"the URL is embedded:///path or embedded:////absolute/path, not {url!r}")
        try:
            days = float(given.pop("retention_days", RETENTION_DAYS))
        except ValueError as error:
            raise ConfigError(f"{url!r}: retention_days is a number of days, 0 keeps records for ever") from error
        if given or not 0 <= days < math.inf:
            raise ConfigError(f"{url!r}: the only option is retention_days, 0 or more; not {', '.join(map(str, given))}")
        self._retention_s = days * 86_400 or math.inf

    def open_log(self) -> Log:
        return FileLog(self._path, self._retention_s)
