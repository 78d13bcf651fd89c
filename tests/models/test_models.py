"""The promises, with several relays and several workers, in whatever order things happen. ``make models`` runs many more."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.conftest import fresh_database
from tests.models.grounds import PostgresqlGround
from tests.models.relays import Relays, RelaysOnPostgresql
from tests.models.running import settings_for
from tests.models.workers import Workers


def test_several_relays_keep_the_promises() -> None:
    run_state_machine_as_test(Relays, settings=settings_for(50))


def test_several_workers_keep_the_promises() -> None:
    run_state_machine_as_test(Workers, settings=settings_for(50))


def test_several_relays_keep_them_on_postgresql(postgresql_url: str) -> None:
    with fresh_database(postgresql_url) as url:
        PostgresqlGround.url = url
        run_state_machine_as_test(RelaysOnPostgresql, settings=settings_for(5, steps=30))
