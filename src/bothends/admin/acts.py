"""Acts: who does what and why, the audit row that each act leaves, and the transaction it runs in."""

from __future__ import annotations

import getpass
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bothends.errors import BothendsError, ConfigError
from bothends.stores.connection import Connection
from bothends.stores.faults import Fault, fault_of
from bothends.stores.postgresql.admin import PostgresqlAdmin
from bothends.stores.steps import Steps, run

__all__ = ["Act", "NotThere", "Refused", "audit", "audit_rows", "consumer_id", "in_transaction", "listed", "os_user"]

T = TypeVar("T")
TEXT_MAX = 1_000
_TRIES = 8


class NotThere(BothendsError):
    """What the operator names does not exist."""


class Refused(BothendsError):
    """What the operator asks would break a promise; the message says what to do instead."""


def os_user() -> str:
    """The user of the operating system, for ``--by``."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return "unknown"


@dataclass(frozen=True, slots=True)
class Act:
    """Who acts, and why. At most 1,000 characters each."""

    by: str
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.by or len(self.by) > TEXT_MAX or len(self.reason) > TEXT_MAX:
            raise ConfigError("--by needs a name, and --by and --reason at most 1,000 characters")


def listed(params: dict[str, Any], name: str, values: Sequence[Any]) -> str:
    """``:name_0, :name_1``, with the values added to ``params``: a list as parameters, in every dialect."""
    keys = [f"{name}_{n}" for n in range(len(values))]
    params.update(zip(keys, values, strict=True))
    return ", ".join(f":{key}" for key in keys)


def audit(admin: PostgresqlAdmin, act: Act, verb: str, target: str, detail: Mapping[str, Any]) -> Steps[None]:
    """Writes the audit row; in the act's own transaction."""
    yield admin.sql(
        "insert into {s}.audit (by, reason, verb, target, detail) values (:by, :reason, :verb, :target, :detail)",
        by=act.by, reason=act.reason, verb=verb, target=target[:TEXT_MAX], detail=json.dumps(detail)[:16_000],
    )._replace(rows=False)


def audit_rows(admin: PostgresqlAdmin, limit: int = 100) -> Steps[list[dict[str, Any]]]:
    """The newest acts."""
    found = yield admin.sql(
        "select {at:at}, by, reason, verb, target, detail from {s}.audit order by id desc limit :limit", limit=limit)
    names = ("at", "by", "reason", "verb", "target", "detail")
    return [dict(zip(names, row, strict=True)) for row in found.rows]


def consumer_id(admin: PostgresqlAdmin, name: str) -> Steps[int]:
    """The id of a consumer that has run at least once. NotThere lists those that have."""
    found = yield admin.sql("select id from {s}.consumers where name = :name", name=name)
    if found.rows:
        return int(found.rows[0][0])
    there = yield admin.sql("select name from {s}.consumers order by name limit 50")
    names = ", ".join(row[0] for row in there.rows) or "none"
    raise NotThere(f"no consumer {name!r} has run on this database (there is {names}); start it with `bothends work`")


def in_transaction(connection: Connection, make: Callable[[], Steps[T]]) -> T:
    """Runs ``make()`` in a transaction of its own, again (8 times at most, jittered) where the database says that it
    only lost a race."""
    for n in range(_TRIES):
        try:
            connection.begin()
            answer = run(make(), connection)
            connection.commit()
            return answer
        except Exception as error:
            connection.rollback()
            if fault_of(error) is not Fault.CONTENTION or n == _TRIES - 1:
                raise
            time.sleep(random.uniform(0, 0.01 * 2**n))
        except BaseException:
            connection.rollback()
            raise
    raise AssertionError("unreachable")
