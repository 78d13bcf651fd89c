"""The audit notices: a loss, a copy, an overtaking, a stranger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from bothends.brokers import open_broker
from bothends.demo.processes import Fleet
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import TABLES, Ground


@pytest.fixture
def ground(pg_database: str, tmp_path: Path) -> Iterator[Ground]:
    """Three events of ``a`` and one of ``b``, each with its effect."""
    with psycopg.connect(pg_database, autocommit=True) as db:
        db.execute(TABLES)
        here = Ground(
            url=pg_database, broker="memory://", topic="t", folder=tmp_path, environ=dict(os.environ), fleet=Fleet(tmp_path),
            db=db, admin=open_broker("memory://"),
        )
        for event_id, key, version in (("a1", "a", 1), ("b1", "b", 1), ("a2", "a", 2), ("a3", "a", 3)):
            db.execute("insert into written values (%s, %s, %s)", (event_id, key, version))
            effect(here, event_id, key)
        yield here


def effect(ground: Ground, event_id: str, key: str) -> None:
    ground.db.execute("insert into effects_log (event_id, key, part, pid) values (%s, %s, 0, 1)", (event_id, key))


def wrong(ground: Ground) -> dict[str, int]:
    found = audit(ground)
    assert clean(found) == (not any(found[name] for name in found if name not in ("events", "effects")))
    return {name: count for name, count in found.items() if count and name not in ("events", "effects")}


def test_nothing_is_found_where_nothing_is_wrong(ground: Ground) -> None:
    assert wrong(ground) == {}


def test_a_loss(ground: Ground) -> None:
    ground.db.execute("delete from effects_log where event_id = 'a2'")
    assert wrong(ground) == {"lost": 1}


def test_two_copies_of_one_effect(ground: Ground) -> None:
    effect(ground, "a1", "a")
    effect(ground, "a1", "a")
    assert wrong(ground) == {"double_effects": 2}


def test_an_overtaking(ground: Ground) -> None:
    ground.db.execute("delete from effects_log where event_id = 'a2'")
    effect(ground, "a2", "a")
    assert wrong(ground) == {"order_violations": 1}


def test_a_stranger(ground: Ground) -> None:
    effect(ground, "never", "a")
    assert wrong(ground) == {"never_written": 1}
