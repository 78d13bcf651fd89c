"""Decisions about failed runs: tried again or dead, when, under which reason, and what is written down about it.

Pure: the time of a failure and the random number for its jitter are given. Everything that is stored is bounded, and free
of what databases refuse in text (NUL, lone surrogates).
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bothends.core.retry import DELAY_MAX_S, Retry
from bothends.errors import HandlerEndedTransaction, Permanent, RetryAfter, Transient, Undecodable

__all__ = [
    "ERROR_MAX", "HISTORY_MAX", "REASON_MAX", "TRACEBACK_MAX", "Failure", "HandlerTimeout", "OutcomeUnknown",
    "SwallowedError", "WorkerLost", "describe_error", "fingerprint", "fingerprint_of_reason", "history_with", "judge",
    "judge_crash", "plain",
]

REASON_MAX = 100
ERROR_MAX = 500
"""Characters of the one-line text of an error."""
TRACEBACK_MAX = 2_000
"""Characters of a traceback that are kept: its end, where it happened."""
HISTORY_MAX = 10
"""Failed runs that are kept in full: the first one and the latest."""
_FRAMES_MAX = 25


class OutcomeUnknown(Permanent):
    """An effect outside may or may not have happened, and nobody may guess: dead, the key held whatever ``then`` says."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="outcome_unknown")


class HandlerTimeout(Exception):
    """A run took longer than ``timeout_s``, or its transaction was silent for longer than the lease."""


class SwallowedError(Exception):
    """The handler went on after a database error had failed its transaction."""


class WorkerLost(Exception):
    """The process died while this message ran alone in it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What follows from one failed run."""

    fate: Literal["retry", "dead"]
    reason: str
    """A code for grouping: ``permanent``, ``handler_error``, ``handler_timeout``, or the handler's own."""
    error: str
    fingerprint: str
    attempts: int
    """Runs charged so far, this one included."""
    crashes: int
    delay_s: float
    history: str
    """JSON array: ``[{"at":..., "attempt":..., "error":..., "traceback":...}]``."""
    hold: bool
    """Whether the key stays held behind a dead message."""


def judge(
    retry: Retry, error: BaseException, *, attempts: int, crashes: int = 0, history: str = "[]", at: str = "",
    jitter: float = 0.0,
) -> Failure:
    """The consequence of ``error`` in the run after ``attempts`` charged ones, at time ``at`` (RFC 3339)."""
    failures = attempts + 1
    reason, certain = _classify(retry, error)
    dead = certain or retry.exhausted(failures)
    delay_s = retry.delay_s(failures, jitter)
    if isinstance(error, RetryAfter):
        delay_s = _bounded(error.seconds)
    text = describe_error(error)
    return Failure(
        fate="dead" if dead else "retry", reason=reason, error=text, fingerprint=fingerprint(error, reason),
        attempts=failures, crashes=crashes, delay_s=0.0 if dead else delay_s,
        history=history_with(history, at=at, attempt=failures, error=text, trace=_trace(error)),
        hold=dead and (retry.then == "hold" or isinstance(error, OutcomeUnknown)),
    )


def judge_crash(retry: Retry, *, attempts: int, crashes: int, history: str = "[]", at: str = "") -> Failure | None:
    """The consequence of ``crashes`` deaths of the process while the message ran alone, or None: it may run again."""
    if retry.crashes is None or crashes < retry.crashes:
        return None
    text = f"the process died {crashes} times while it ran this message alone"
    return Failure(
        fate="dead", reason="worker_lost", error=text, fingerprint=fingerprint_of_reason("worker_lost"), attempts=attempts,
        crashes=crashes, delay_s=0.0, history=history_with(history, at=at, attempt=attempts + 1, error=text, trace=""),
        hold=retry.then == "hold",
    )


def _classify(retry: Retry, error: BaseException) -> tuple[str, bool]:
    """The reason, and whether trying again cannot help."""
    if isinstance(error, Permanent):
        return _code(error.reason or "permanent"), True
    if isinstance(error, HandlerEndedTransaction):
        return "transaction_ended", True
    if isinstance(error, Undecodable):
        return _code(error.reason), True
    if isinstance(error, HandlerTimeout):
        return "handler_timeout", False
    if isinstance(error, SwallowedError):
        return "swallowed_error", False
    if isinstance(error, Transient):
        return "transient", False
    if isinstance(error, tuple(retry.permanent)) and not isinstance(error, tuple(retry.transient)):
        return "permanent", True
    return "handler_error", False


def _code(reason: object) -> str:
    return plain(str(reason))[:REASON_MAX] or "permanent"


def _bounded(seconds: object) -> float:
    try:
        value = float(seconds)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(value, 0.0), DELAY_MAX_S) if value == value else 0.0


def plain(text: str) -> str:
    """``text`` as every database takes it."""
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text.encode("utf-8", "backslashreplace").decode()


def describe_error(error: BaseException) -> str:
    """One line, at most ``ERROR_MAX`` characters; never raises, whatever the error's ``__str__`` does."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception as broken:
        said = f"(its text cannot be had: {type(broken).__name__})"
    line = " ".join(plain(f"{name}: {said}" if said else name).split())
    return line if len(line) <= ERROR_MAX else line[: ERROR_MAX - 1] + "…"


def _trace(error: BaseException) -> str:
    try:
        whole = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_FRAMES_MAX))
    except Exception as broken:
        whole = f"(no traceback: {type(broken).__name__})"
    return plain(whole)[-TRACEBACK_MAX:]


def fingerprint(error: BaseException, reason: str) -> str:
    """16 hexadecimal digits, the same for the same kind of error at the same place: reason, type and the functions it
    passed through, without line numbers and texts, which change with releases and with messages."""
    places: list[str] = []
    trace = error.__traceback__
    while trace is not None and len(places) < 10_000:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        if not str(module).startswith("bothends."):
            places.append(f"{module}.{code.co_qualname}")
        trace = trace.tb_next
    distinct = list(dict.fromkeys(places))[-5:]  # a recursion's depth does not matter
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return _digest([reason, kind, *distinct])


def fingerprint_of_reason(reason: str, detail: str = "") -> str:
    """For failures that are no exception of a handler."""
    return _digest([reason, detail])


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def history_with(history: str, *, at: str, attempt: int, error: str, trace: str) -> str:
    """``history`` with one more entry; the first and the latest are kept, ``HISTORY_MAX`` in all."""
    try:
        entries: list[dict[str, Any]] = json.loads(history)
    except ValueError:
        entries = []
    entry: dict[str, Any] = {"at": at, "attempt": attempt, "error": error}
    if trace:
        entry["traceback"] = trace
    entries.append(entry)
    if len(entries) > HISTORY_MAX:
        entries = entries[:1] + entries[-(HISTORY_MAX - 1):]
    return json.dumps(entries, ensure_ascii=False)
