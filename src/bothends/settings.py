"""Settings: every value that an operator can set, in one table: type, default, unit, range and meaning.

The table is the source of `bothends config`, of the variables and of docs/reference/settings.md. Nothing is read here;
``config.resolve`` finds the values and remembers where each came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bothends.errors import ConfigError

__all__ = ["DECLARED", "Declared", "Settings", "Source", "reference"]

Source = Literal["auto", "poll", "wal", "message"]
"""Where relays read."""

_TRUE, _FALSE = {"1", "true", "yes", "on"}, {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Declared:
    """One row of the table. ``low`` and ``high`` are inclusive; for text they bound its length."""

    name: str
    kind: type
    default: Any
    doc: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    from_code: str | None = None
    """The attribute of ``Service`` that sets it in code."""
    flag: str = ""
    """The command's option, where it is not called like the setting."""

    @property
    def option(self) -> str:
        """What a command's option that sets it is called."""
        return self.flag or f"--{self.name.replace('_', '-').removesuffix('-s').removesuffix('-url')}"

    def parse(self, raw: object, where: str) -> Any:
        """The typed value of ``raw`` (text from a variable, or TOML's own types). ConfigError names ``where``."""
        value = _CONVERT[self.kind](raw)
        if value is None or not self._in_range(value):
            shown = "***" if self.secret else repr(raw)
            raise ConfigError(f"{where}: {self.name} must be {self.wants()}, not {shown}")
        return value

    def _in_range(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        size = len(value) if isinstance(value, str) else value
        return (self.low is None or size >= self.low) and (self.high is None or size <= self.high)

    def wants(self) -> str:
        """What is accepted, in words, for messages and the reference."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return f"text of at most {self.high:.0f} characters" if self.high is not None else "text"
        noun = "a whole number" if self.kind is int else "a number"
        unit = f" of {self.unit}" if self.unit else ""
        return f"{noun}{unit} from {self.low:g} to {self.high:g}"


def _to_bool(raw: object) -> bool | None:
    if isinstance(raw, bool):
        return raw
    text = str(raw).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _to_int(raw: object) -> int | None:
    if isinstance(raw, bool | float):
        return None
    try:
        return int(str(raw).strip())
    except ValueError:
        return None


def _to_float(raw: object) -> float | None:
    if isinstance(raw, bool):
        return None
    try:
        value = float(str(raw).strip())
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def _to_str(raw: object) -> str | None:
    return raw if isinstance(raw, str) and "\0" not in raw else None


_CONVERT: dict[type, Callable[[object], Any]] = {bool: _to_bool, int: _to_int, float: _to_float, str: _to_str}


def _setting(kind: type, default: Any, doc: str, **rest: Any) -> Any:
    return field(default=default, metadata={"kind": kind, "doc": doc, **rest})


@dataclass(frozen=True, slots=True)
class Settings:
    """The values that hold for one service, and ``origins``: where each came from (``default`` where nowhere).

    ``database_url`` and ``broker_url`` are None where nothing names them: ``config.need`` says so at the first I/O.
    """

    service: str = ""
    database_url: str | None = _setting(
        str, None, "Where the service's own tables and ours live: `postgresql://...` or `sqlite:///path`. "
        "`postgres://` and `postgresql+driver://` are understood, and several hosts as libpq takes them: "
        "`postgresql://a:5432,b:5432/name?target_session_attrs=read-write`.", secret=True, high=4096, from_code="database")
    broker_url: str | None = _setting(
        str, None, "The broker: `kafka://host:port[,host:port]`, `embedded:///path` or `memory://`. Query parameters "
        "go to the client: `kafka://host:9092?linger.ms=20` makes a busy relay wait longer for fuller batches (5 if nothing "
        "is said; where few events are on their way none waits).", secret=True, high=4096, from_code="broker")
    group_prefix: str = _setting(
        str, "", "Put before the names of consumer groups and their inboxes, so that two environments, each with a database "
        "of its own, can share a broker. Changed on a database that knows the consumer under another prefix, it keeps "
        "workers from starting: set it back, or give the consumer its old full name, "
        "`aliases=[\"eu-orders.billing\"]`, to take over position and inbox.", high=20)
    partitions: int = _setting(int, 8, "Partitions of topics that `topics create` and `--create-topics` make.",
                               low=1, high=10_000)
    create_topics: bool = _setting(bool, False, "Make missing topics at start (for development).")
    stop_timeout_s: float = _setting(
        float, 20.0, "How long a stop may take: what is not finished then is released and the process ends.",
        unit="seconds", low=0, high=3600)
    spares: int = _setting(
        int, 0, "Keep so many more processes that have imported the application and wait: they take the places of the next "
        "ones that die, so that work goes on in a moment also on a busy machine. Each costs its memory, about 60 MB.",
        low=0, high=8)
    lease_s: float = _setting(
        float, 4.0, "How long a process that went silent keeps its lanes and keys.", unit="seconds", low=1, high=60)
    member: int | None = _setting(
        int, None, "Index of this process among those on this host, for Kafka's static membership. Unset: the lowest "
        "that is free.", low=0, high=9999)
    relay_source: str = _setting(
        str, "auto", "Where relays read. `poll`: they look into the outbox table. `wal`: PostgreSQL's write-ahead log tells "
        "what entered it. `message`: `add` writes events into the log alone, and nothing is stored; all that add must have the "
        "same setting. `auto`: `wal` where the server allows it, else `poll`.",
        choices=("auto", "poll", "wal", "message"), from_code="relay_source", flag="--source")
    wal_budget_mb: int = _setting(
        int, 1024, "How much of the write-ahead log a relay's slot may hold back before the relay lets go of it.",
        unit="megabytes", low=16, high=1_000_000)
    relay_batch_max: int = _setting(
        int, 2000, "Events that the relay takes from the outbox at once.", low=1, high=10_000)
    poll_busy_s: float = _setting(
        float, 0.003, "How long the relay waits between looks at the outbox while events come.",
        unit="seconds", low=0.001, high=10)
    poll_idle_s: float = _setting(
        float, 0.05, "The same, after a second without events.", unit="seconds", low=0.001, high=60)
    purge_interval_s: float = _setting(
        float, 60.0, "How often a worker removes what is older than its retention; 0: only `bothends purge` does.",
        unit="seconds", low=0, high=86_400)
    purge_grace_s: float = _setting(
        float, 300.0, "Nothing is purged in the first seconds after a worker has started: what was redelivered "
        "while it was away is judged first.", unit="seconds", low=0, high=86_400)
    history_keep_days: int = _setting(
        int, 90, "How long closed dead letters, settled effects and audit rows are kept.",
        unit="days", low=1, high=36_500)
    runtime_dir: str | None = _setting(
        str, None, "Directory of lock files and wake-up sockets. Unset: `$XDG_RUNTIME_DIR/bothends`, else "
        "`/tmp/bothends-<uid>`.", high=80)
    log_format: str = _setting(
        str, "auto", "Log lines: `json`, `text` (key=value), or `auto`: text on a terminal, else json.",
        choices=("auto", "json", "text"))
    log_level: str = _setting(str, "info", "The least level that is logged.",
                              choices=("debug", "info", "warning", "error"))
    log_counts_s: float = _setting(
        float, 60.0, "How often a process logs what it did (processed, duplicates, published ...); 0: only at its end.",
        unit="seconds", low=0, high=86_400)
    origins: dict[str, str] = field(default_factory=dict)


def _declared() -> dict[str, Declared]:
    rows = {}
    for f in fields(Settings):
        if "doc" in f.metadata:
            rows[f.name] = Declared(name=f.name, default=f.default, **f.metadata)
    return rows


DECLARED: dict[str, Declared] = _declared()


def reference() -> str:
    """docs/reference/settings.md, made from the table."""
    lines = [
        "# Settings", "",
        "<!-- made by `python -m bothends.settings`; a test compares -->", "",
        "The first of these that is set wins: the command's flag, the variable of the service "
        "(`BOTHENDS_<SERVICE>_X`, upper case, `_` for `-`), the general variable (`BOTHENDS_X`), the argument in code "
        "(`Service(...)`), `[tool.bothends.<service>]`, then `[tool.bothends]` in `pyproject.toml`; a `bothends.toml` "
        "has the same tables without `tool.bothends` and wins over `pyproject.toml`. Each variable can also be given "
        "by file: `BOTHENDS_DATABASE_URL_FILE=/run/secrets/url`. `bothends config` shows each value and where it came "
        "from, secrets masked. URLs are read at the first I/O, never at import.", "",
        "| Setting | Variable | Accepts | Default | Meaning |", "| --- | --- | --- | --- | --- |",
    ]
    for row in DECLARED.values():
        default = "none" if row.default is None else f"`{row.default}`" if row.default != "" else "empty"
        lines.append(f"| `{row.name}` | `BOTHENDS_{row.name.upper()}` | {row.wants()} | {default} | {row.doc} |")
    lines += ["", "Two more are read before any service is known: `BOTHENDS_APP` (or `[tool.bothends] app`), the "
              "module that declares the services, and `NO_COLOR`, which turns colours off.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(reference(), end="")
