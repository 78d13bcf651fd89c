"""Pausing and resuming a consumer: idempotent, with one audit row per change."""

import pytest

from bothends.admin import consumers
from bothends.admin.acts import Act, NotThere, audit_rows
from tests.admin.shelf import Shelf

ANNA = Act("anna", "the gateway is being moved")
STOCK = "inventory.stock"


@pytest.fixture(autouse=True)
def _has_run(shelf: Shelf) -> None:
    shelf.consumer(STOCK)


def test_list_names_what_has_run(shelf: Shelf) -> None:
    rows = shelf.run(consumers.consumers(shelf.admin, ["inventory"]))
    assert [(row["consumer"], row["paused"]) for row in rows] == [(STOCK, False)]
    assert rows[0]["started_at"].endswith("Z")
    assert shelf.run(consumers.consumers(shelf.admin, ["other"])) == []


def test_pause_and_resume_change_once_and_leave_a_row_each(shelf: Shelf) -> None:
    changed = [shelf.run(consumers.set_paused(shelf.admin, STOCK, paused, ANNA)) for paused in (True, True, False, False)]
    assert changed == [True, False, True, False]
    verbs = [row["verb"] for row in shelf.run(audit_rows(shelf.admin))]
    assert verbs == ["consumers resume", "consumers pause"]


def test_paused_is_shown(shelf: Shelf) -> None:
    shelf.run(consumers.set_paused(shelf.admin, STOCK, True, ANNA))
    assert shelf.run(consumers.consumers(shelf.admin, ["inventory"]))[0]["paused"] is True


def test_an_unknown_consumer_is_refused_with_those_that_exist(shelf: Shelf) -> None:
    with pytest.raises(NotThere, match=STOCK):
        shelf.run(consumers.set_paused(shelf.admin, "inventory.stok", True, ANNA))
