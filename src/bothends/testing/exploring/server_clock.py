"""The clock of an exploration on a PostgreSQL server: functions of time that stand still unless they are moved.

A server's own clock cannot be stopped. So the scratch database has functions that read a sequence, which knows no
transactions, and each statement that goes there is given their names in place of the server's.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["SCHEMA", "SET", "SETUP", "lent"]

SCHEMA = "bothends_clock"

SET = f"select setval('{SCHEMA}.at', $1)"
"""Microseconds of Unix time."""

SETUP = f"""
create schema {SCHEMA};
create sequence {SCHEMA}.at;
create function {SCHEMA}.clock_timestamp() returns timestamptz language plpgsql volatile as $$
begin
    return to_timestamp((select last_value from {SCHEMA}.at) / 1e6);
end $$;
create function {SCHEMA}.now() returns timestamptz language plpgsql stable as $$
declare
    said text := current_setting('{SCHEMA}.now', true);
begin
    if coalesce(said, '') = '' then  -- the first look of a transaction is its time
        said := (select last_value from {SCHEMA}.at)::text;
        perform set_config('{SCHEMA}.now', said, true);
    end if;
    return to_timestamp(said::bigint / 1e6);
end $$;
grant usage on schema {SCHEMA} to public;
grant select on sequence {SCHEMA}.at to public;
"""

_FUNCTIONS = {
    "clock_timestamp": "clock_timestamp", "statement_timestamp": "clock_timestamp",
    "now": "now", "transaction_timestamp": "now",
}
_WORDS = {
    "current_timestamp": "timestamptz", "localtimestamp": "timestamp", "current_date": "date", "current_time": "timetz",
    "localtime": "time",
}
_TIMELY = re.compile("|".join((*_FUNCTIONS, *_WORDS)), re.IGNORECASE)
_QUOTED = r"""e'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/"""
_FUNCTION = rf"(?:pg_catalog\s*\.\s*)? (?P<function>{'|'.join(_FUNCTIONS)}) (?=\s*\()"
_WORD = rf"(?P<word>{'|'.join(_WORDS)}) \b (?P<digits>\s*\(\s*\d\s*\))?"
_TOKEN = re.compile(
    rf"""{_QUOTED} | (?<![\w$."]) (?: {_FUNCTION} | {_WORD} )""", re.IGNORECASE | re.DOTALL | re.VERBOSE)


@lru_cache(maxsize=4096)
def lent(text: str) -> str:
    """``text`` with the exploration's functions of time. What is quoted stays; a function's body between ``$$`` does not count
    as quoted."""
    return _TOKEN.sub(_lend, text) if _TIMELY.search(text) else text


def _lend(match: re.Match[str]) -> str:
    if match["function"]:
        return f"{SCHEMA}.{_FUNCTIONS[match['function'].lower()]}"
    if match["word"]:
        return f"({SCHEMA}.now()::{_WORDS[match['word'].lower()]}{match['digits'] or ''})"
    return match[0]
