"""What the Kafka clients are told: settings from the URL, the ones our promises rest on, and where their log goes."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from confluent_kafka import KafkaError, KafkaException

from bothends.errors import ConfigError
from bothends.urls import mask

__all__ = ["CONSUMER", "LOG", "PRODUCER", "ClientLog", "common_settings", "refuse_settings"]

LOG = logging.getLogger("bothends.brokers.kafka")

_KBYTES_MAX = 131_072

PRODUCER: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    # A record that expires leaves a hole which later ones of its key fall into: nothing expires while it waits.
    "message.timeout.ms": 0,
    # librdkafka's own default is CRC32; Java producers of the same topic must agree.
    "partitioner": "murmur2_random",
    "allow.auto.create.topics": False,
}
"""Fixed, because the promises of ``ports.Publisher`` rest on them: a URL that sets one otherwise is refused."""

PRODUCER_DEFAULTS: dict[str, Any] = {
    "linger.ms": 5,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": _KBYTES_MAX,
    # How long a topic may be unknown to this client before its records are given back: the relay asks before it sends.
    "topic.metadata.propagation.max.ms": 5_000,
}

CONSUMER: dict[str, Any] = {
    "group.protocol": "classic",
    "partition.assignment.strategy": "cooperative-sticky",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    # A position that the log no longer has is a loss that somebody must know of; it is never moved in silence.
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "allow.auto.create.topics": False,
}

CONSUMER_DEFAULTS: dict[str, Any] = {
    "session.timeout.ms": 6_000,
    "heartbeat.interval.ms": 1_500,
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 32_768,
    # New partitions and topics are found within this time.
    "topic.metadata.refresh.interval.ms": 10_000,
}

_COMMON_DEFAULTS: dict[str, Any] = {
    "client.id": "bothends",
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    "log.connection.close": False,
}


class ClientLog:
    """Receives librdkafka's log lines. A connection that comes and goes is not worth a warning: status shows it."""

    def log(self, level: int, text: str, *args: object) -> None:
        if args and args[0] == "CONFWARN":
            level = logging.DEBUG
        LOG.log(min(level, logging.INFO), text, *args)


def common_settings(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Client settings from ``kafka://[user:password@]host:port[,host:port][/]?name=value``, ``options`` last.

    Raises ConfigError without a host, or where a setting contradicts what the promises rest on.
    """
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    if not hosts or parts.path not in ("", "/"):
        raise ConfigError(f"the broker URL is kafka://host:port[,host:port][/?name=value], not {mask(url)!r}")
    given: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    if credentials:
        user, _, password = credentials.partition(":")
        given |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
    given |= options
    for fixed in (PRODUCER, CONSUMER):
        for name, value in fixed.items():
            if name in given and str(given[name]).lower() != str(value).lower():
                raise ConfigError(
                    f"{mask(url)!r} sets {name}={given[name]}, but bothends' promises rest on {value}: leave it out"
                )
    return _COMMON_DEFAULTS | {"bootstrap.servers": hosts} | given


def refuse_settings(url: str, error: KafkaException) -> ConfigError:
    """What a client that cannot be made says of its settings."""
    reason = error.args[0] if error.args else error
    text = reason.str() if isinstance(reason, KafkaError) else str(reason)
    return ConfigError(f"the Kafka client refuses the settings of {mask(url)!r}: {text}")
