"""Leftovers: what a run that was killed has left on a PostgreSQL server, as far as it does harm. Schemas and topics lie there;
a replication slot makes the server keep its log for ever."""

from __future__ import annotations

import contextlib
from typing import Any

from bothends.demo import names
from bothends.stores import open_store
from bothends.stores.postgresql.slots import SlotSteps
from bothends.stores.steps import Sql, run

__all__ = ["sign_of_life", "sweep"]

_SCHEMA = f"^demo_[0-9a-f]{{8}}_({'|'.join(names.SERVICES)})$"
_RUN = len("demo-") + 8
_SCHEMAS_MAX = 1000


def sign_of_life(url: str, run_name: str) -> Any:
    """A connection that is named after the run: while it is open the run's slots are nobody's to drop."""
    return open_store(url).connect(name=_sign(run_name))


def _sign(run_name: str) -> str:
    return f"bothends {run_name}"


def sweep(url: str) -> list[str]:
    """Drops the slots of runs in this database that have ended, where nobody reads them; their names."""
    import psycopg

    dropped = []
    connection = open_store(url).connect(name="bothends demo")
    try:
        for slot in _left(connection):
            with contextlib.suppress(psycopg.Error):  # the role may not, or somebody reads or drops it now
                connection.execute(Sql("select pg_drop_replication_slot(:slot)", {"slot": slot}))
                dropped.append(slot)
    finally:
        connection.close()
    return dropped


def _left(connection: Any) -> list[str]:
    found = connection.execute(Sql(
        "select slot_name::text from pg_replication_slots where database = current_database() and not active "
        "and starts_with(slot_name, 'be_')"))
    idle = {slot for slot, in found.rows}
    if not idle:
        return []
    signs = {sign for sign, in connection.execute(Sql(
        "select application_name from pg_stat_activity where datname = current_database()")).rows}
    schemas = connection.execute(Sql(
        f"select nspname::text from pg_namespace where nspname ~ :ours order by 1 limit {_SCHEMAS_MAX}", {"ours": _SCHEMA}))
    ended = [schema for schema, in schemas.rows if _sign(schema[:_RUN].replace("_", "-")) not in signs]
    theirs = [
        run(SlotSteps(schema, messages=messages).name(), connection) for schema in ended for messages in (False, True)]
    return [slot for slot in theirs if slot in idle]
