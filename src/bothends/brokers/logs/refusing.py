"""Refusing: what a log does not take, and what becomes of the records beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bothends.brokers.logs.log import Member
from bothends.errors import Blame, PublishError
from bothends.ports import Outgoing

__all__ = ["RECORD_BYTES_MAX", "fenced", "not_sent", "refusals"]

RECORD_BYTES_MAX = 1_048_576
"""Key, value and headers of one record; larger ones are refused, as Kafka does."""


def refusals(records: Sequence[Outgoing], known: Callable[[str], int]) -> dict[int, PublishError]:
    """What a log says of a batch before it writes it. One refused record keeps the others out as well: they are
    ``not_sent``, and nothing is said about them."""
    found: dict[int, PublishError] = {}
    topics = {topic for topic, _, _, _ in records}
    missing = {topic for topic in topics if not known(topic)}
    for index, (topic, key, value, headers) in enumerate(records):
        size = len(key or b"") + len(value or b"") + sum(len(name) + len(data) for name, data in headers)
        if topic in missing:
            found[index] = PublishError(f"topic {topic!r} does not exist; create it with: bothends topics create",
                                        blame=Blame.PLACE, reason="unknown_topic")
        elif size > RECORD_BYTES_MAX:
            found[index] = PublishError(f"topic {topic!r}: a record of {size} bytes, at most {RECORD_BYTES_MAX} are taken",
                                        blame=Blame.EVENT, reason="too_large")
    if found:
        found |= {index: not_sent(next(iter(found.values()))) for index in range(len(records)) if index not in found}
    return found


def fenced(member: Member) -> PublishError:
    return PublishError(
        f"group {member.group!r}: another process has joined as member {member.name!r}; give each its own (--member N)",
        blame=Blame.BROKER, reason="fenced",
    )


def not_sent(cause: PublishError) -> PublishError:
    return PublishError(f"not sent, because of an earlier failure of this publisher: {cause}", blame=cause.blame,
                        reason="not_sent")
