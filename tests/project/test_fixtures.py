"""The fixtures that other tests stand on, against the real servers."""

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import fresh_database


@pytest.mark.parametrize("server", [
    pytest.param("postgresql", marks=pytest.mark.needs("postgresql")),
    pytest.param("postgresql18", marks=pytest.mark.needs("postgresql18")),
])  # fmt: skip
def test_a_fresh_database_is_empty_and_goes_whatever_is_left_in_it(request, server):
    server_url = request.getfixturevalue(f"{server}_url")
    with fresh_database(server_url) as url:
        left_open = psycopg.connect(url)
        name = left_open.info.dbname
        tables = left_open.execute("select from pg_tables where schemaname = 'public'").fetchall()
        assert tables == []
        left_open.rollback()
        left_open.tpc_begin("it's left")
        left_open.execute("create table t (a int)")
        left_open.tpc_prepare()
        psycopg.connect(url).execute("select 1")
    left_open.close()
    with psycopg.connect(server_url) as server_connection:
        assert server_connection.execute("select from pg_database where datname = %s", [name]).fetchone() is None


def test_the_server_is_set_up_for_logical_decoding_and_many_sessions(postgresql_url):
    with psycopg.connect(postgresql_url) as connection:
        settings = dict(connection.execute(
            "select name, setting from pg_settings where name in "
            "('wal_level', 'max_connections', 'max_prepared_transactions', 'fsync')"
        ).fetchall())  # fmt: skip
    assert settings == {
        "wal_level": "logical", "max_connections": "200", "max_prepared_transactions": "20", "fsync": "on",
    }  # fmt: skip


def test_the_broker_makes_topics_only_on_request(kafka_url, topic_prefix):
    admin = AdminClient({"bootstrap.servers": kafka_url.removeprefix("kafka://"), "allow.auto.create.topics": True})
    topic = f"{topic_prefix}made"
    assert admin.list_topics(f"{topic_prefix}unmade", timeout=10).topics[f"{topic_prefix}unmade"].error is not None
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(10)
    assert topic in admin.list_topics(timeout=10).topics
    assert f"{topic_prefix}unmade" not in admin.list_topics(timeout=10).topics


def test_the_proxied_listener_sends_clients_to_the_proxys_port(kafka_proxied_url):
    admin = AdminClient({"bootstrap.servers": kafka_proxied_url.removeprefix("kafka://"), "log_level": 0})
    assert {(broker.host, broker.port) for broker in admin.list_topics(timeout=10).brokers.values()} == {
        ("127.0.0.1", 19095)
    }
