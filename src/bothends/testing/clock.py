"""The virtual clock of the test kit. The engines know no other clock than the database's, so time is moved where they
look for it: every stored time goes back by as much as the clock goes forward. It works alike on every store, and what
runs in a test is what runs in production.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from bothends.stores import Store
from bothends.stores.schema import quoted_schema
from bothends.stores.steps import Sql, Steps

__all__ = ["VirtualClock", "clock_forward", "retry_now", "seconds_to_next_retry", "table"]

_EARLIER = {
    "postgresql": "clock_timestamp() - interval '1 second'", "sqlite": "(julianday('now') - 2440587.5) * 86400.0 - 1.0",
}

_TIMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("outbox", ("deliver_at",)),
    ("delayed", ("deliver_at",)),
    ("held", ("next_at", "held_at")),
    ("blocked_keys", ("next_at", "lease_until", "since")),
    ("parked", ("parked_at",)),
    ("dead_letters", ("at", "changed_at")),
    ("effects", ("started_at", "changed_at")),
)
"""Every stored time that something waits for or is counted from. A relay's own lease is not among them: its holder is
this process, which has not slept."""

_MARGIN_S = 0.01
"""SQLite's clock has milliseconds, so a time that is just due is taken a little later."""


class VirtualClock:
    """How far a test has moved the clock, for what is stamped outside of databases: retry topics and histories."""

    def __init__(self) -> None:
        self.forwarded_s = 0.0

    def now_s(self) -> float:
        """Unix seconds."""
        return time.time() + self.forwarded_s

    def now(self) -> str:
        """RFC 3339."""
        return datetime.fromtimestamp(self.now_s(), UTC).isoformat(timespec="milliseconds")


def table(store: Store, name: str) -> str:
    """The quoted name of one of our tables in ``store``."""
    if store.dialect == "sqlite":
        return f"bothends_{name}"
    return f"{quoted_schema(store.schema)}.{name}"


def clock_forward(store: Store, seconds: float) -> Steps[None]:
    """Moves the clock of ``store`` forward by ``seconds`` (0 or more). To be run in a transaction."""
    postgresql = store.dialect == "postgresql"
    earlier = "{0} - make_interval(secs => :by)" if postgresql else "{0} - :by"
    for name, columns in _TIMES:
        assignments = ", ".join(f"{column} = {earlier.format(column)}" for column in columns)
        # NULL stays NULL: what waits for no time goes on waiting for none.
        yield Sql(f"update {table(store, name)} set {assignments}", {"by": float(seconds)})


def seconds_to_next_retry(store: Store, consumers: Sequence[int]) -> Steps[float | None]:
    """Seconds until the next retry is due (0: now), of a message parked by one of ``consumers`` (their numbers) or of a
    held event; None where none waits.

    Delayed events, keys that an operator must release and schemas that a new version must bring do not count.
    """
    if store.dialect == "postgresql":
        left = "extract(epoch from min(next_at) - clock_timestamp())::float8"
    else:
        left = "min(next_at) - (julianday('now') - 2440587.5) * 86400.0"
    numbers = ", ".join(str(int(number)) for number in consumers) or "null"
    waits: list[float] = []
    for name, whose in (("blocked_keys", f"and consumer in ({numbers})"), ("held", "")):
        result = yield Sql(f"select {left} from {table(store, name)} where state = 'retrying' {whose}")
        if (seconds := result.rows[0][0]) is not None:
            waits.append(max(0.0, float(seconds)) + _MARGIN_S)
    return min(waits, default=None)


def retry_now(store: Store, consumer: int) -> Steps[None]:
    """Whatever ``consumer`` has parked for a retry is due now, without the clock moving for anybody else."""
    yield Sql(
        f"update {table(store, 'blocked_keys')} set next_at = {_EARLIER[store.dialect]} "
        f"where consumer = :consumer and state = 'retrying'", {"consumer": consumer}, rows=False,
    )
