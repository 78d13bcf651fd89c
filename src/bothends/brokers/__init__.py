"""Brokers behind ``ports.Broker``. Each is imported when its URL is first opened."""

from __future__ import annotations

import importlib.util
from typing import Any

from bothends.errors import ConfigError, MissingExtra
from bothends.ports import Broker
from bothends.urls import BROKERS, mask, normal_broker

__all__ = ["open_broker"]


def open_broker(url: str, **options: Any) -> Broker:
    """The broker of ``url``; no I/O yet. ``options`` are the adapter's own and override the URL's query parameters.

    Raises ConfigError for a scheme or an option that is not known, MissingExtra where the adapter's client is missing.
    """
    url = normal_broker(url)
    scheme = url.partition("://")[0]
    if scheme == "kafka":
        if importlib.util.find_spec("confluent_kafka") is None:
            raise MissingExtra("a kafka:// broker", "kafka")
        from bothends.brokers.kafka import KafkaBroker

        return KafkaBroker(url, **options)
    if scheme == "embedded":
        from bothends.brokers.embedded import EmbeddedBroker

        return EmbeddedBroker(url, **options)
    if scheme == "memory":
        from bothends.brokers.memory import MemoryBroker

        return MemoryBroker(url, **options)
    raise ConfigError(f"no adapter for {mask(url)!r}; there are: {', '.join(f'{name}://' for name in BROKERS)}")
