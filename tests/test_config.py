"""Settings: which source wins, where each value came from, and what bad values are told."""

from pathlib import Path
from typing import Any

import pytest

from bothends import Service
from bothends.config import (
    app_name,
    need_broker,
    need_database,
    need_source,
    read_toml,
    resolve,
    resolve_all,
    shown,
    unknown_variables,
)
from bothends.errors import ConfigError
from bothends.settings import DECLARED, Settings, reference
from bothends.urls import mask, normal_broker, normal_database


def settings(
    name: str = "orders", *, flags: dict[str, object] | None = None, environ: dict[str, str] | None = None,
    toml: dict[str, Any] | None = None, **service: Any,
) -> Settings:
    return resolve(Service(name, **service), flags, environ=environ or {}, toml=toml or {})


def test_the_first_source_that_has_it_wins(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("sqlite:///file.db\n")
    toml = {"": "pyproject.toml", "database_url": "sqlite:///toml.db", "orders": {"database_url": "sqlite:///own.db"}}
    sources: list[tuple[dict[str, Any], str, str]] = [
        ({"flags": {"database_url": "sqlite:///flag.db"}}, "sqlite:///flag.db", "--database"),
        ({"environ": {"BOTHENDS_ORDERS_DATABASE_URL": "sqlite:///o.db"}}, "sqlite:///o.db", "BOTHENDS_ORDERS_DATABASE_URL"),
        ({"environ": {"BOTHENDS_DATABASE_URL": "sqlite:///g.db"}}, "sqlite:///g.db", "BOTHENDS_DATABASE_URL"),
        ({"database": "sqlite:///code.db"}, "sqlite:///code.db", "Service('orders', database=)"),
        ({"toml": toml}, "sqlite:///own.db", "pyproject.toml [orders]"),
        ({"toml": {k: v for k, v in toml.items() if k != "orders"}}, "sqlite:///toml.db", "pyproject.toml"),
    ]
    for n, (_, value, origin) in enumerate(sources):
        together: dict[str, Any] = {}
        for given, _, _ in sources[n:][::-1]:
            for name, part in given.items():
                together[name] = {**part, **together.get(name, {})} if isinstance(part, dict) and name == "environ" else part
        found = settings(**together)
        assert (found.database_url, found.origins["database_url"]) == (value, origin)
    found = settings(environ={"BOTHENDS_DATABASE_URL_FILE": str(secret)}, database="sqlite:///code.db")
    assert (found.database_url, found.origins["database_url"]) == ("sqlite:///file.db", "BOTHENDS_DATABASE_URL_FILE")


def test_defaults_say_that_they_are() -> None:
    found = settings()
    assert (found.partitions, found.stop_timeout_s, found.lease_s, found.create_topics) == (8, 20.0, 4.0, False)
    assert set(found.origins.values()) == {"default"}
    assert found.database_url is None


def test_a_service_with_a_dash_has_an_underscore_in_its_variables() -> None:
    found = settings("order-desk", environ={"BOTHENDS_ORDER_DESK_PARTITIONS": "3", "BOTHENDS_ORDER-DESK_PARTITIONS": "4"})
    assert found.partitions == 3


def test_no_setting_can_be_mistaken_for_another_of_a_service() -> None:
    for name in DECLARED:
        assert not any(name.endswith(f"_{other}") for other in DECLARED), name


@pytest.mark.parametrize(("name", "raw"), [
    ("partitions", "0"), ("partitions", "10001"), ("partitions", "1.5"), ("partitions", "many"), ("partitions", ""),
    ("stop_timeout_s", "nan"), ("stop_timeout_s", "inf"), ("stop_timeout_s", "-1"), ("lease_s", "0"), ("lease_s", "61"),
    ("create_topics", "maybe"), ("group_prefix", "x" * 21), ("log_format", "xml"), ("member", "-1"),
    ("relay_source", "log"), ("wal_budget_mb", "15"), ("wal_budget_mb", "1000001"),
])
def test_values_out_of_range_are_refused_with_what_is_wanted(name: str, raw: str) -> None:
    variable = f"BOTHENDS_{name.upper()}"
    if raw == "":
        assert settings(environ={variable: raw}).origins[name] == "default"  # an empty variable is none
        return
    with pytest.raises(ConfigError) as caught:
        settings(environ={variable: raw})
    assert variable in str(caught.value)
    assert DECLARED[name].wants() in str(caught.value)


@pytest.mark.parametrize(("name", "raw", "value"), [
    ("partitions", " 12 ", 12), ("stop_timeout_s", "2.5", 2.5), ("create_topics", "Yes", True), ("create_topics", "off", False),
    ("member", "0", 0), ("group_prefix", "test-", "test-"),
])
def test_values_are_read_from_text(name: str, raw: str, value: object) -> None:
    assert getattr(settings(environ={f"BOTHENDS_{name.upper()}": raw}), name) == value


def test_toml_has_types_of_its_own() -> None:
    found = settings(toml={"partitions": 4, "create_topics": True, "stop_timeout_s": 3})
    assert (found.partitions, found.create_topics, found.stop_timeout_s) == (4, True, 3.0)
    with pytest.raises(ConfigError, match="whole number"):
        settings(toml={"": "bothends.toml", "partitions": 4.5})
    with pytest.raises(ConfigError, match="whole number"):
        settings(toml={"partitions": True})


def test_a_slip_of_the_pen_in_toml_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'partition'; is it 'partitions'"):
        settings(toml={"": "pyproject.toml", "partition": 4})
    with pytest.raises(ConfigError, match=r"\[orders\].*'lease'"):
        settings(toml={"": "pyproject.toml", "orders": {"lease": 4}})
    with pytest.raises(ConfigError, match="'nope'"):
        settings(flags={"nope": 1})


def test_a_slip_of_the_pen_in_a_variable_is_listed() -> None:
    environ = {
        "BOTHENDS_DATABSE_URL": "x", "BOTHENDS_ORDERS_PARTITIONS": "1", "BOTHENDS_APP": "x", "BOTHENDS_TEST_KAFKA_URL": "x",
        "BOTHENDS_BROKER_URL_FILE": "x", "HOME": "x"}
    assert unknown_variables([Service("orders")], environ) == ["BOTHENDS_DATABSE_URL"]


def test_files_of_variables(tmp_path: Path) -> None:
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_text("x" * 70_000)
    binary.write_bytes(b"\xff\xfe")
    for path in (large, binary, tmp_path / "missing"):
        with pytest.raises(ConfigError, match="BOTHENDS_BROKER_URL_FILE"):
            settings(environ={"BOTHENDS_BROKER_URL_FILE": str(path)})
    with pytest.raises(ConfigError, match="both set"):
        settings(environ={"BOTHENDS_BROKER_URL": "memory://", "BOTHENDS_BROKER_URL_FILE": str(large)})


def test_a_general_variable_must_not_merge_databases_that_differ_in_code() -> None:
    services = [Service("orders", database="sqlite:///o.db"), Service("stock", database="sqlite:///s.db")]
    environ = {"BOTHENDS_DATABASE_URL": "sqlite:///all.db"}
    with pytest.raises(ConfigError, match="BOTHENDS_ORDERS_DATABASE_URL or BOTHENDS_STOCK_DATABASE_URL"):
        resolve_all(services, environ=environ, toml={})
    # One of them has a variable of its own: then the general one decides only about the other.
    found = resolve_all(services, environ={**environ, "BOTHENDS_STOCK_DATABASE_URL": "sqlite:///mine.db"}, toml={})
    assert (found["orders"].database_url, found["stock"].database_url) == ("sqlite:///all.db", "sqlite:///mine.db")
    # The same in code, or nothing in code: no contradiction.
    same = [Service("orders", database="sqlite:///o.db"), Service("stock", database="sqlite:///o.db"), Service("idle")]
    assert {s.database_url for s in resolve_all(same, environ=environ, toml={}).values()} == {"sqlite:///all.db"}


def test_a_general_variable_wins_over_sources_that_differ_in_code() -> None:
    services = [Service("orders", relay_source="message"), Service("stock", relay_source="wal"), Service("idle")]
    found = resolve_all(services, environ={}, toml={})
    assert [s.relay_source for s in found.values()] == ["message", "wal", "auto"]
    assert found["orders"].origins["relay_source"] == "Service('orders', relay_source=)"
    found = resolve_all(services, environ={"BOTHENDS_RELAY_SOURCE": "poll", "BOTHENDS_STOCK_RELAY_SOURCE": "auto"}, toml={})
    assert [s.relay_source for s in found.values()] == ["poll", "auto", "poll"]


def test_the_source_of_a_relay_names_its_flag() -> None:
    found = settings(flags={"relay_source": "wal"}, environ={"BOTHENDS_RELAY_SOURCE": "poll"})
    assert (found.relay_source, found.origins["relay_source"]) == ("wal", "--source")
    with pytest.raises(ConfigError, match="--source: relay_source must be one of auto, poll, wal, message, not 'log'"):
        settings(flags={"relay_source": "log"})
    assert (settings().wal_budget_mb, settings(toml={"wal_budget_mb": 16}).wal_budget_mb) == (1024, 16)


@pytest.mark.parametrize("source", ["auto", "poll", "wal", "message"])
def test_only_postgresql_has_a_log_to_read(source: str) -> None:
    environ = {"BOTHENDS_RELAY_SOURCE": source}
    assert need_source(settings(database="postgres://h/d", environ=environ)) == source
    on_sqlite = settings(database="sqlite:///x.db", environ=environ)
    if source in ("auto", "poll"):
        assert need_source(on_sqlite) == "poll"
        return
    with pytest.raises(ConfigError, match=f"relay_source is {source} \\(BOTHENDS_RELAY_SOURCE\\).*set it to auto or poll"):
        need_source(on_sqlite)


@pytest.mark.parametrize(("flag", "refused"), [("wal", True), ("poll", True), ("auto", True), ("message", False)])
def test_a_relay_is_not_told_past_the_setting_that_producers_go_by(
    flag: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they add would be in no table, and nobody would read it."""
    told = settings(database="postgres://h/d", flags={"relay_source": flag})
    assert need_source(told) == flag
    monkeypatch.setenv("BOTHENDS_RELAY_SOURCE", "message")
    if refused:
        with pytest.raises(ConfigError, match=f"--source is {flag}, but relay_source is message.*Leave --source out"):
            need_source(told)
    else:
        assert need_source(told) == "message"


def test_a_missing_url_says_how_to_give_it() -> None:
    with pytest.raises(ConfigError, match="BOTHENDS_ORDER_DESK_DATABASE_URL or BOTHENDS_DATABASE_URL"):
        need_database(settings("order-desk"))
    with pytest.raises(ConfigError, match=r"Service\(\.\.\., broker=\)"):
        need_broker(settings())


@pytest.mark.parametrize(("url", "normal"), [
    ("postgres://u:p@h/d", "postgresql://u:p@h/d"), ("postgresql+asyncpg://h/d", "postgresql://h/d"),
    ("postgresql+psycopg://h/d?sslmode=require", "postgresql://h/d?sslmode=require"), ("POSTGRESQL://h/d", "postgresql://h/d"),
    ("sqlite+aiosqlite:///x.db", "sqlite:///x.db"), ("sqlite://", "sqlite://"),
])
def test_database_urls_in_other_spellings(url: str, normal: str) -> None:
    assert normal_database(url) == normal


@pytest.mark.parametrize("url", ["mysql://h/d", "h/d", "", "postgresql:/h", "kafka://h"])
def test_database_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="postgresql://"):
        normal_database(url)


def test_broker_urls() -> None:
    assert normal_broker("KAFKA://a:1,b:2?acks=all") == "kafka://a:1,b:2?acks=all"
    with pytest.raises(ConfigError, match="kafka://") as caught:
        normal_broker("amqp://user:secret@h")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("url", "masked"), [
    ("postgresql://u:pa@ss@h/d", "postgresql://u:***@h/d"), ("postgresql://u@h/d", "postgresql://u@h/d"),
    ("kafka://h:1?sasl.password=x&acks=all", "kafka://h:1?sasl.password=***&acks=all"),
    ("kafka://a:1,b:2?ssl.key.password=x", "kafka://a:1,b:2?ssl.key.password=***"),
    ("sqlite:///shop.db", "sqlite:///shop.db"), ("u:secret@h", "***"), ("postgresql://[::1", "***"),
    ("postgresql://u:p@a:1,b:2/d?target_session_attrs=any", "postgresql://u:***@a:1,b:2/d?target_session_attrs=any"),
    ("postgresql://u:p@[::1]:1,[::2]:2/d", "postgresql://u:***@[::1]:1,[::2]:2/d"),
    ("postgresql:///d?host=a,b&port=1,2&password=x", "postgresql:///d?host=a,b&port=1,2&password=***"),
    ("postgresql://u:p?w#x@h/d", "postgresql://u:***@h/d"), ("postgresql://u:p/w@h/d", "postgresql://u:***@h/d"),
    ("postgresql:///d?password=x#y", "postgresql:///d?password=***"),
    ("kafka://a:1?sasl.username=me@here", "kafka://a:1?sasl.username=me%40here"),
])
def test_secrets_are_masked(url: str, masked: str) -> None:
    assert mask(url) == masked


def test_what_is_shown_has_no_secret_and_names_the_source() -> None:
    found = settings(environ={"BOTHENDS_DATABASE_URL": "postgresql://u:secret@h/d"})
    rows = {name: (value, origin) for name, value, origin in shown(found)}
    assert rows["database_url"] == ("postgresql://u:***@h/d", "BOTHENDS_DATABASE_URL")
    assert rows["partitions"] == (8, "default")
    assert set(rows) == set(DECLARED)


def test_toml_of_the_working_directory(tmp_path: Path) -> None:
    assert read_toml(tmp_path) == {}
    (tmp_path / "pyproject.toml").write_text('[tool.bothends]\napp = "shop"\n[tool.bothends.orders]\npartitions = 2\n')
    assert read_toml(tmp_path) == {"": "pyproject.toml", "app": "shop", "orders": {"partitions": 2}}
    (tmp_path / "bothends.toml").write_text('app = "other"\n')
    assert read_toml(tmp_path) == {"": "bothends.toml", "app": "other"}
    (tmp_path / "bothends.toml").write_text("app = \n")
    with pytest.raises(ConfigError, match=r"bothends\.toml"):
        read_toml(tmp_path)


def test_the_name_of_the_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="BOTHENDS_APP"):
        app_name(environ={})
    (tmp_path / "bothends.toml").write_text('app = "from_toml"\n')
    assert app_name(environ={}) == "from_toml"
    assert app_name(environ={"BOTHENDS_APP": "from_environment"}) == "from_environment"
    assert app_name("given", environ={"BOTHENDS_APP": "x"}) == "given"


def test_the_reference_is_what_the_table_says() -> None:
    written = (Path(__file__).parents[1] / "docs" / "reference" / "settings.md").read_text("utf-8")
    assert written == reference(), "run: python -m bothends.settings > docs/reference/settings.md"


def test_nothing_is_read_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOTHENDS_PARTITIONS", "not a number")
    Service("orders")  # declaring reads nothing
    with pytest.raises(ConfigError):
        resolve(Service("orders"), toml={})
