"""Slots and the command line: made with the tables where messages need them, gone with the tables."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from bothends import cli
from tests.conftest import fresh_database

SLOTS = "select count(*) from pg_replication_slots where database = current_database()"
PUBLICATIONS = "select count(*) from pg_publication"


def test_with_the_tables_go_slot_and_publication(
    postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay is removed by the toolkit's own command; nothing keeps the log afterwards (conduit#165)."""
    with fresh_database(postgresql_url) as url:
        tmp_path.joinpath("gone_app.py").write_text(
            "from bothends import Service\nshop = Service('gone', relay_source='message')\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("BOTHENDS_DATABASE_URL", url)
        assert cli.run(["schema", "apply", "gone_app"]) == 0
        with psycopg.connect(url, autocommit=True) as db:
            assert db.execute(SLOTS).fetchone() == (1,)
            assert db.execute(PUBLICATIONS).fetchone() == (1,)
            assert cli.run(["schema", "apply", "gone_app", "--to", "0"]) == 0
            assert db.execute(SLOTS).fetchone() == (0,)
            assert db.execute(PUBLICATIONS).fetchone() == (0,)
