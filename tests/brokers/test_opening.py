"""Opening a broker by URL: nothing happens yet, and what is wrong is said at once."""

import importlib.util
from pathlib import Path

import pytest

from bothends.brokers import open_broker
from bothends.errors import Blame, ConfigError, MissingExtra, PublishError


def test_opening_does_no_io(tmp_path: Path) -> None:
    assert open_broker("kafka://192.0.2.1:9").url == "kafka://192.0.2.1:9"
    open_broker(f"embedded:///{tmp_path}/no/such/folder/events.log")
    assert list(tmp_path.iterdir()) == []


def test_a_scheme_that_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="kafka://, embedded://, memory://"):
        open_broker("amqp://localhost")


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"bothends\[kafka\]"):
        open_broker("kafka://localhost:9092")


@pytest.mark.parametrize("setting", ["acks=1", "enable.idempotence=false", "message.timeout.ms=5000", "partitioner=murmur2",
                                     "enable.auto.commit=true", "auto.offset.reset=latest"])
def test_settings_that_break_a_promise_are_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="promises rest on"):
        open_broker(f"kafka://localhost:9092/?{setting}")
    open_broker("kafka://localhost:9092/?acks=all&enable.idempotence=true")


def test_settings_that_the_client_refuses_name_the_url() -> None:
    broker = open_broker("kafka://user:hunter2@localhost:9092/?no.such.setting=1")
    with pytest.raises(ConfigError, match=r"no\.such\.setting") as refusal:
        broker.publisher("x")
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("url", ["kafka://", "kafka:///", "kafka://localhost:9092/topic"])
def test_a_kafka_url_needs_hosts_and_no_path(url: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        open_broker(url)


def test_secrets_are_never_shown() -> None:
    url = "kafka://shop:hunter2@h1:9092,h2:9092/?sasl.mechanism=PLAIN&ssl.key.password=topsecret"
    broker = open_broker(url)
    assert "hunter2" not in repr(broker)
    assert "topsecret" not in repr(broker)
    assert "h1:9092,h2:9092" in repr(broker)
    with pytest.raises(ConfigError) as refusal:
        open_broker(url + "&acks=0")
    assert "hunter2" not in str(refusal.value)


def test_credentials_and_options_go_to_the_client() -> None:
    from bothends.brokers.kafka.client import common_settings

    settings = common_settings("kafka://shop:p%40ss@h:1/?sasl.mechanism=PLAIN&client.id=a", {"client.id": "b"})
    assert settings["sasl.username"] == "shop"
    assert settings["sasl.password"] == "p@ss"
    assert settings["sasl.mechanism"] == "PLAIN"
    assert settings["client.id"] == "b"
    assert settings["bootstrap.servers"] == "h:1"


@pytest.mark.parametrize("url", ["embedded://", "embedded:///", "embedded://host/path", "embedded:///x.log?colour=red",
                                 "embedded:///x.log?retention_days=soon", "embedded:///x.log?retention_days=-1",
                                 "memory://x?y=1"])
def test_urls_that_mean_nothing_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_broker(url)


def test_one_memory_name_is_one_log(topic_prefix: str) -> None:
    first, second, other = (open_broker(f"memory://{topic_prefix}{name}") for name in ("a", "a", "b"))
    assert first.create_topic("t", 1)
    assert second.topic("t").state == "ok"
    assert other.topic("t").state == "missing"
    assert first.cluster_id() == second.cluster_id() != other.cluster_id()


def test_a_broker_that_is_not_there_is_said_in_time() -> None:
    broker = open_broker("kafka://127.0.0.1:1")
    with pytest.raises(PublishError) as refusal:
        broker.ping(0.5)
    assert refusal.value.blame is Blame.BROKER
    broker.close()
