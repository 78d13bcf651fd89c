"""Rotation: a child table whose rows are all done is truncated, so that storage does not grow and nothing is vacuumed.

ACCESS EXCLUSIVE is asked for with NOWAIT: granted, it proves that no open or prepared transaction has rows in the child;
refused, another time will do (a waiting TRUNCATE would queue every scan behind it).
"""

from __future__ import annotations

from bothends.stores.steps import Sql, Steps

__all__ = ["CHILDREN", "CHILD_ROWS", "StorageSteps"]

CHILDREN = 3
CHILD_ROWS = 1_048_576
PROGRESS_ROWS = 65_536

_CURSORS = (
    "select l.lane, c.hwm, c.snapshot from {s}.relay_lanes l cross join lateral (select p.hwm, p.snapshot from "
    "{s}.relay_progress p where ((p.lanes >> l.lane) & 1) <> 0 order by p.id desc limit 1) c"
)


class StorageSteps:
    def __init__(self, quoted: str) -> None:
        self._s = quoted

    def candidates(self) -> Steps[list[str]]:
        """Children that hold rows and may be emptied. Of the outbox only the one that the sequence comes to next: the
        current and the previous child refuse ids that were given before."""
        asked = [
            f"select '{table}_{child}' from {self._s}.{table}_seq where {test.format(size=size, child=child)} "
            f"and exists (select from {self._s}.{table}_{child})"
            for table, size, test in (
                ("outbox", CHILD_ROWS, f"(last_value / {{size}} + 1) % {CHILDREN} = {{child}}"),
                ("relay_progress", PROGRESS_ROWS, f"(last_value / {{size}}) % {CHILDREN} <> {{child}}"),
            )
            for child in range(CHILDREN)
        ]
        found = yield Sql(" union all ".join(asked))
        return [str(row[0]) for row in found.rows]

    def done(self, child: str) -> Steps[bool]:
        """Whether every row of the child that can be seen is done."""
        return bool((yield Sql(self._check(child))).rows[0][0])

    def truncate(self, child: str) -> Steps[None]:
        """Truncates the child if nobody uses it and all of it is done. One statement, so that a relay that freezes
        holds no lock: each statement within has a snapshot of its own, taken after the lock was granted."""
        yield Sql(
            f"do $$ begin lock table {self._s}.{child} in access exclusive mode nowait; "
            "if current_setting('transaction_isolation') = 'read committed' and ("
            f"{self._check(child)}) then truncate {self._s}.{child}; end if; end $$", rows=False,
        )

    def _check(self, child: str) -> str:
        """A query for one boolean. It reads indexes, never the rows: those of a child with all that waits, or with a writer
        who is older than it, would take longer than a lease lasts, each time."""
        if child.startswith("relay_progress"):
            # Needed as long as it has the newest cursor of a lane.
            return (
                f"select (select min(c.id) from {self._s}.relay_lanes l cross join lateral (select p.id from "
                f"{self._s}.relay_progress p where ((p.lanes >> l.lane) & 1) <> 0 order by p.id desc limit 1) c) > "
                f"coalesce((select max(id) from {self._s}.{child}), 0)"
            )
        # Done is what lies at or below the hwm of its lane and is visible in its snapshot. Asked of the lowest hwm and of all
        # snapshots together, whatever the lane: all lanes pass the place in the end. `min(...) where xid >=`, not `xid =`:
        # whatever the statistics say, it is the index that is read.
        return (
            f"with c as materialized ({_CURSORS.format(s=self._s)}) select (select count(*) = 64 from c) and coalesce("
            f"(select max(seq) from {self._s}.{child}) <= (select min(hwm) from c) and "
            f"(select max(xid) from {self._s}.{child}) < (select min(pg_snapshot_xmax(snapshot)) from c) and not exists ("
            "select from (select distinct pg_snapshot_xip(snapshot) as xid from c) running where running.xid = ("
            f"select min(o.xid) from {self._s}.{child} o where o.xid >= running.xid)), true)"
        )
