"""Blame: what a Kafka error is about, the event, the place or the broker."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from bothends.errors import Blame, PublishError

__all__ = ["COLLATERAL", "error_of", "publish_error"]

_EVENT = {
    KafkaError.MSG_SIZE_TOO_LARGE: "too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "too_large",
    KafkaError.INVALID_MSG: "invalid",
    KafkaError.INVALID_MSG_SIZE: "invalid",
    KafkaError.INVALID_RECORD: "invalid",
    KafkaError.INVALID_TIMESTAMP: "invalid",
    KafkaError.POLICY_VIOLATION: "policy",
    KafkaError._BAD_MSG: "invalid",
    KafkaError._INVALID_ARG: "invalid",
}
_PLACE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown_topic",
    KafkaError.UNKNOWN_TOPIC_ID: "unknown_topic",
    KafkaError._UNKNOWN_TOPIC: "unknown_topic",
    KafkaError._UNKNOWN_PARTITION: "unknown_partition",
    KafkaError.TOPIC_EXCEPTION: "invalid_topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "denied",
    KafkaError.LEADER_NOT_AVAILABLE: "no_leader",
    KafkaError.NOT_LEADER_FOR_PARTITION: "no_leader",
    KafkaError.NOT_ENOUGH_REPLICAS: "not_enough_replicas",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "not_enough_replicas",
    KafkaError.KAFKA_STORAGE_ERROR: "storage",
}
_WHAT_NEXT = {
    "too_large": "raise the topic's max.message.bytes, or make the event smaller",
    "unknown_topic": "create it with: bothends topics create",
    "denied": "grant this client WRITE (and READ, for consumers) on the topic",
    "not_enough_replicas": "bring the topic's replicas back to min.insync.replicas",
}

COLLATERAL = frozenset({
    KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._GAPLESS_GUARANTEE, KafkaError._FATAL,
})
"""Codes that say nothing about a record itself: it went down with another one, or with the client."""


def error_of(failure: KafkaException | KafkaError) -> KafkaError:
    if isinstance(failure, KafkaException):
        inner: KafkaError = failure.args[0]
        return inner
    return failure


def publish_error(failure: KafkaException | KafkaError, what: str) -> PublishError:
    """``what`` names what was tried: ``topic 'orders.events'``, ``kafka://...``. Everything unknown is the broker's."""
    error = error_of(failure)
    code = error.code()
    if code in _EVENT:
        blame, reason = Blame.EVENT, _EVENT[code]
    elif code in _PLACE:
        blame, reason = Blame.PLACE, _PLACE[code]
    else:
        blame, reason = Blame.BROKER, "fatal" if error.fatal() else error.name().lower().lstrip("_")
    advice = _WHAT_NEXT.get(reason)
    return PublishError(f"{what}: {error.str()}" + (f"; {advice}" if advice else ""), blame=blame, reason=reason)
