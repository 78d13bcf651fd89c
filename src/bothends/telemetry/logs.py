"""Logs: one line per fact, as JSON or as key=value, on the standard library's loggers below ``bothends``.

A line has ``at``, ``level``, ``event`` (what happened, a short phrase) and the fields given as ``extra=``. Bodies and
headers of messages are never a field. Lines have a bound: long values are cut.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["JsonFormatter", "TextFormatter", "get", "setup"]

VALUE_MAX = 2_000
TRACE_MAX = 8_000
FIELDS_MAX = 40
_NEVER = {"body", "payload", "value", "headers", "data"}
_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def get(name: str = "") -> logging.Logger:
    """The logger ``bothends`` or ``bothends.<name>``."""
    return logging.getLogger(f"bothends.{name}" if name else "bothends")


def setup(format: str = "auto", level: str = "info", stream: TextIO | None = None, **always: object) -> None:
    """Sends our lines (and warnings of others) to ``stream`` (default: stderr). Only processes of ours call it: a
    library that is embedded leaves the application's logging alone. ``always`` are fields of every line."""
    stream = sys.stderr if stream is None else stream
    as_json = format == "json" or (format == "auto" and not stream.isatty())
    handler = _Quiet(stream)
    handler.setFormatter(JsonFormatter(always) if as_json else TextFormatter(always))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    get().setLevel(level.upper())


class _Quiet(logging.StreamHandler[TextIO]):
    """A reader that went away (a closed pipe) must not stop the work."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _record_fields(record: logging.LogRecord, always: dict[str, object]) -> dict[str, object]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    line: dict[str, object] = {
        "at": at.replace("+00:00", "Z"), "level": record.levelname.lower(),
        "event": _cut(record.getMessage()), **always,
    }
    if not record.name.startswith("bothends"):
        line["logger"] = record.name
    for name, value in vars(record).items():
        if name not in _STANDARD and not name.startswith("_") and value is not None and len(line) < FIELDS_MAX:
            line[name] = "(not logged)" if name in _NEVER else _plain(value)
    if record.exc_info and record.exc_info[0] is not None:
        line["error"] = line.get("error", f"{record.exc_info[0].__name__}: {_cut(str(record.exc_info[1]))}")
        line["traceback"] = logging.Formatter().formatException(record.exc_info)[-TRACE_MAX:]
    return line


def _plain(value: Any) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return _cut(value.decode())
        return _cut(f"0x{value.hex()}")
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in list(value)[:FIELDS_MAX]]
    return _cut(str(value))


def _cut(text: str) -> str:
    return text if len(text) <= VALUE_MAX else text[:VALUE_MAX] + "…"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, always: dict[str, object] | None = None) -> None:
        super().__init__()
        self._always = always or {}

    def format(self, record: logging.LogRecord) -> str:
        # ASCII: a lone surrogate in somebody's key must not make the line unprintable.
        return json.dumps(_record_fields(record, self._always), separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """``at level event key=value ...``; a traceback follows on lines of its own."""

    def __init__(self, always: dict[str, object] | None = None) -> None:
        super().__init__()
        self._always = always or {}

    def format(self, record: logging.LogRecord) -> str:
        line = _record_fields(record, self._always)
        trace = line.pop("traceback", None)
        head = f"{line.pop('at')} {str(line.pop('level')).ljust(7)} {_one_line(str(line.pop('event')))}"
        tail = "".join(f" {name}={_quoted(value)}" for name, value in line.items())
        return head + tail + (f"\n{trace}" if trace else "")


def _one_line(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _quoted(value: object) -> str:
    if isinstance(value, list):
        value = ",".join(str(v) for v in value)
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    return json.dumps(text)
