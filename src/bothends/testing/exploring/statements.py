"""Statements by their text: what kind of boundary one is, and what it is called in a story."""

from __future__ import annotations

import re
from functools import lru_cache

from bothends.testing.exploring.boundaries import Kind

__all__ = ["kind_of", "said", "writes"]

_KINDS = {"begin": Kind.BEGIN, "commit": Kind.COMMIT, "end": Kind.COMMIT, "rollback": Kind.ROLLBACK}
_WRITING = re.compile(r"\b(insert|update|delete|replace|create|drop|alter|truncate|copy)\b", re.IGNORECASE)
_COMMENT = re.compile(r"\s*(--[^\n]*\n|/\*.*?\*/)\s*", re.DOTALL)
_TEXT_MAX = 100

_OURS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), words) for pattern, words in (
        (r"^insert into \S*inbox\b", "writes the inbox row"),
        (r"^insert into \S*runs\b", "notes that it begins with the message"),
        (r"^delete from \S*runs\b", "takes its start mark back"),
        (r"^insert into \S*outbox\b", "writes the event into the outbox"),
        (r"^delete from \S*outbox\b", "notes that the broker has confirmed"),
        (r"\bfrom \S*outbox\b", "reads the outbox"),
        (r"^insert into \S*relay_progress\b", "notes what it has published"),
        (r"^insert into \S*parked\b", "parks the message"),
        (r"^insert into \S*blocked_keys\b", "makes the key wait"),
        (r"^insert into \S*dead_letters\b", "writes a dead letter"),
        (r"^insert into \S*effects\b", "notes that the outside call begins"),
        (r"^update \S*effects\b.*'completed'", "keeps the result of the outside call"),
        (r"^update \S*effects\b", "notes how the outside call ended"),
        (r"\bfrom \S*effects\b", "looks for the result of the outside call"),
        (r"^(insert into|update) \S*consumers\b", "registers the consumer"),
        (r"^update \S*blocked_keys\b", "takes a key whose time has come"),
        (r"^delete from \S*blocked_keys\b", "frees the key"),
        (r"^delete from \S*parked\b", "takes the message out of the parked ones"),
        (r"\bfrom \S*blocked_keys\b", "asks whether the key waits"),
        (r"\bfrom \S*inbox\b", "asks the inbox"),
    )
)


@lru_cache(maxsize=4096)
def kind_of(text: str) -> Kind:
    """COMMIT, ROLLBACK and BEGIN are what they are; everything else is a statement. Savepoints are statements."""
    words = _COMMENT.sub("", text[:200]).split(None, 2)
    if not words:
        return Kind.SQL
    first = words[0].rstrip(";").lower()
    if first == "rollback" and len(words) > 1 and words[1].lower() in ("to", "transaction"):
        return Kind.SQL
    return _KINDS.get(first, Kind.SQL)


@lru_cache(maxsize=4096)
def writes(text: str) -> bool:
    return _WRITING.search(text) is not None


@lru_cache(maxsize=4096)
def said(text: str, *, users: bool) -> str:
    """The statement as a story tells it: the product's in words, the user's as it is, shortened."""
    kind = kind_of(text)
    if kind is not Kind.SQL:
        return {Kind.BEGIN: "begins a transaction", Kind.COMMIT: "COMMIT", Kind.ROLLBACK: "ROLLBACK"}[kind]
    plain = " ".join(text.split())
    if not users:
        for pattern, words in _OURS:
            if pattern.search(plain):
                return words
        return "keeps its books"
    return plain if len(plain) <= _TEXT_MAX else plain[: _TEXT_MAX - 1] + "…"
