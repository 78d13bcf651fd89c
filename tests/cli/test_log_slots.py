"""Slots and the command line: made with the tables where messages need them, gone with the tables."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from bothends import cli
from tests.conftest import fresh_database
from tests.docs.pages import ROOT, blocks

SLOTS = "select count(*) from pg_replication_slots where database = current_database()"
PUBLICATIONS = "select count(*) from pg_publication"


def an_app(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, service: str) -> None:
    """An application of one service in ``folder``, which commands find by ``name``."""
    folder.joinpath(f"{name}.py").write_text(f"from bothends import Service\nshop = {service}\n")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))


def test_commands_take_a_url_with_several_hosts(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They show it without its password."""
    with fresh_database(postgresql_url) as url:
        an_app(tmp_path, monkeypatch, "several_app", "Service('several', broker='embedded:///events.db')")
        parts = urlsplit(url)
        place = f"{parts.hostname}:{parts.port}{parts.path}"
        monkeypatch.setenv("BOTHENDS_DATABASE_URL", f"postgresql://{parts.username}:secret@127.0.0.1:1,{place}")
        for command in (["schema", "apply"], ["schema", "status"], ["status"], ["health"], ["config"], ["dead", "list"]):
            assert cli.run([*command, *(["--app"] if command[0] == "dead" else []), "several_app"]) == 0
            said = capsys.readouterr()
            assert "secret" not in said.out + said.err
        assert cli.run(["status", "several_app", "--json"]) == 0
        assert f"{parts.username}:***@127.0.0.1:1,{place}" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "status"), [
    ("schema apply", 2), ("dead list --app", 2), ("relay", 2), ("work", 2), ("health", 1)])
def test_a_url_for_a_replication_connection_is_refused(
    project: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str,
    status: int,
) -> None:
    monkeypatch.setenv("BOTHENDS_DATABASE_URL", f"{postgresql_url}?replication=database")
    assert cli.run([*command.split(), "shop"]) == status
    said = "".join(capfd.readouterr())
    assert "has the parameter replication=" in said
    assert "leave it out: relays open" in said


def test_the_page_removes_slots_and_publications_though_one_slot_on_record_is_gone(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = [block.text for block in blocks(ROOT / "docs/how-to/read-the-log.md") if block.language == "sql"][-1]
    with fresh_database(postgresql_url) as url:
        an_app(tmp_path, monkeypatch, "page_app", "Service('page', relay_source='message')")
        monkeypatch.setenv("BOTHENDS_DATABASE_URL", url)
        assert cli.run(["schema", "apply", "page_app"]) == 0
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("update bothends.relay_log set slot = 'be_none' where not messages")
            for statement in sql.split(";\n"):
                db.execute(statement)
            assert db.execute(SLOTS).fetchone() == (0,)
            assert db.execute(PUBLICATIONS).fetchone() == (0,)


def test_with_the_tables_go_slot_and_publication(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A relay is removed by the toolkit's own command; nothing keeps the log afterwards (conduit#165)."""
    with fresh_database(postgresql_url) as url:
        an_app(tmp_path, monkeypatch, "gone_app", "Service('gone', relay_source='message')")
        monkeypatch.setenv("BOTHENDS_DATABASE_URL", url)
        assert cli.run(["schema", "apply", "gone_app"]) == 0
        with psycopg.connect(url, autocommit=True) as db:
            assert db.execute(SLOTS).fetchone() == (1,)
            assert db.execute(PUBLICATIONS).fetchone() == (1,)
            assert cli.run(["schema", "apply", "gone_app", "--to", "0"]) == 2
            said = capsys.readouterr().err
            assert re.search(r"version 5 down to 0 and loses the slot be_\w+_m with [\d.]+ [kMG]B of the log\.", said), said
            assert db.execute(SLOTS).fetchone() == (1,)
            db.execute("update bothends.relay_log set slot = 'be_none' where not messages")  # dropped by hand, or never made
            assert cli.run(["schema", "apply", "gone_app", "--to", "0"]) == 2
            assert "be_none" not in capsys.readouterr().err
            assert cli.run(["schema", "apply", "gone_app", "--to", "0", "--yes"]) == 0
            assert db.execute(SLOTS).fetchone() == (0,)
            assert db.execute(PUBLICATIONS).fetchone() == (0,)
