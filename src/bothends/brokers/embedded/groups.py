"""Groups in the log's file: members with a lease by the boot clock, claims on partitions, positions."""

from __future__ import annotations

import json
import sqlite3
import zlib

from bothends.brokers.embedded.file import boot_clock, boot_id
from bothends.brokers.embedded.records import topic_of
from bothends.brokers.logs.log import LEASE_S, Member, Standing
from bothends.brokers.logs.refusing import fenced
from bothends.core.sharing import share
from bothends.ports import Partition

__all__ = ["beat", "bury", "give_up", "join", "leave", "live_members", "store"]


def bury(connection: sqlite3.Connection, group: str) -> None:
    """Members whose lease is over are gone. A reading from the future comes from before a restart."""
    now = boot_clock()
    connection.execute(
        "delete from members where grp = ? and (boot <> ? or seen < ? or seen > ?)",
        [group, boot_id(), now - LEASE_S, now + LEASE_S],
    )
    connection.execute(
        "delete from claims where grp = ?1 and member not in (select name from members where grp = ?1)", [group]
    )


def live_members(connection: sqlite3.Connection, group: str) -> int:
    bury(connection, group)
    return int(connection.execute("select count(*) from members where grp = ?", [group]).fetchone()[0])


def join(connection: sqlite3.Connection, member: Member) -> None:
    bury(connection, member.group)
    connection.execute(
        "insert into members select ?1, ?2, ?3, ?4, ?5, ?6, coalesce(max(joined), 0) + 1 from members where grp = ?1 "
        "on conflict (grp, name) do update set token = excluded.token, topics = excluded.topics, boot = excluded.boot, "
        "seen = excluded.seen",
        [member.group, member.name, member.token, json.dumps(member.topics), boot_id(), boot_clock()],
    )


def beat(connection: sqlite3.Connection, member: Member) -> Standing:
    row = connection.execute(
        "select token from members where grp = ? and name = ?", [member.group, member.name]
    ).fetchone()
    if row is not None and row[0] != member.token:
        raise fenced(member)
    join(connection, member)  # again, where the lease was over
    everyone = [
        (name, json.loads(topics)) for name, topics in
        connection.execute("select name, topics from members where grp = ? order by joined, name", [member.group])
    ]
    held: dict[Partition, int] = {}
    surplus: list[Partition] = []
    wanting = False
    for topic in member.topics:
        number_of_topic, partitions = topic_of(connection, topic)
        if not partitions:
            continue
        _start(connection, member, number_of_topic, partitions)
        claims = dict(connection.execute(
            "select number, member from claims where grp = ? and topic = ?", [member.group, number_of_topic]
        ).fetchall())
        names = [name for name, topics in everyone if topic in topics]
        due = share(partitions, claims, names, member.name, zlib.crc32(topic.encode()))
        connection.executemany(
            "insert into claims values (?, ?, ?, ?)",
            [(member.group, number_of_topic, number, member.name) for number in due.take],
        )
        mine = connection.execute(
            "select p.number, p.offset from positions p join claims c using (grp, topic, number) "
            "where grp = ? and topic = ? and member = ? order by p.number", [member.group, number_of_topic, member.name],
        )
        held |= {Partition(topic, number): offset for number, offset in mine}
        surplus += [Partition(topic, number) for number in due.give_up]
        wanting = wanting or due.wanting
    return Standing(held, surplus, wanting)


def _start(connection: sqlite3.Connection, member: Member, topic: int, partitions: int) -> None:
    """Positions for partitions without one: as declared where the group is new to the topic, else from the first."""
    known = {number for (number,) in connection.execute(
        "select number from positions where grp = ? and topic = ?", [member.group, topic]
    )}
    missing = [number for number in range(partitions) if number not in known]
    at = member.start.at if not known else "earliest"
    for number in missing:
        low, high = connection.execute(
            "select low, high from partitions where topic = ? and number = ?", [topic, number]
        ).fetchone()
        if isinstance(at, str):
            offset = low if at == "earliest" else high
        else:
            later = connection.execute(
                "select min(offset) from records where topic = ? and number = ? and at_ms >= ?",
                [topic, number, int(at.timestamp() * 1000)],
            ).fetchone()[0]
            offset = high if later is None else later
        connection.execute("insert into positions values (?, ?, ?, ?)", [member.group, topic, number, offset])


def store(connection: sqlite3.Connection, member: Member, positions: dict[Partition, int]) -> None:
    """Only what the member still holds."""
    connection.executemany(
        "update positions set offset = ?1 where grp = ?2 and number = ?4 and topic = (select id from topics where name = ?3)"
        " and exists (select 1 from claims c join members m on m.grp = c.grp and m.name = c.member where c.grp = ?2"
        " and c.topic = positions.topic and c.number = ?4 and m.name = ?5 and m.token = ?6)",
        [(offset, member.group, p.topic, p.number, member.name, member.token) for p, offset in positions.items()],
    )


def give_up(connection: sqlite3.Connection, member: Member, partitions: list[Partition]) -> None:
    connection.executemany(
        "delete from claims where grp = ?1 and topic = (select id from topics where name = ?2) and number = ?3 "
        "and member = (select name from members where grp = ?1 and name = ?4 and token = ?5)",
        [(member.group, p.topic, p.number, member.name, member.token) for p in partitions],
    )


def leave(connection: sqlite3.Connection, member: Member) -> None:
    connection.execute(
        "delete from members where grp = ? and name = ? and token = ?", [member.group, member.name, member.token]
    )
    bury(connection, member.group)
