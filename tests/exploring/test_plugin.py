"""The plug-in for pytest: "survives every crash", in three lines."""

from __future__ import annotations

import pytest

SHOP = """
import sqlite3
from dataclasses import dataclass
from bothends import Context, Service, event

@event("plugin.paid", key="order", topic="plugin.orders")
@dataclass(frozen=True)
class Paid:
    order: str

def tables(db):
    db.execute("create table booked (no text)")

def shop(inbox):
    service = Service("plugin-shop")
    @service.consumer("book", inbox=inbox).handle(Paid)
    def book(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        ctx.connection.execute("insert into booked values (?)", [paid.order])
    return service
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(plugin_shop=SHOP)
    pytester.syspathinsert()
    return pytester


def run(suite: pytest.Pytester, test: str) -> pytest.RunResult:
    suite.makeconftest('pytest_plugins = ["bothends.pytest_plugin"]')
    suite.makepyfile(f"import pytest\nfrom plugin_shop import *\n{test}")
    return suite.runpytest_subprocess("--strict-markers", "-p", "no:randomly")


def test_a_handler_that_survives(suite: pytest.Pytester) -> None:
    run(suite, """
def test_it(survives_every_crash):
    report = survives_every_crash(shop(inbox=True), [Paid("1")], start=tables)
    assert report.runs > report.boundaries > 30
""").assert_outcomes(passed=1)


def test_one_that_does_not_fails_with_its_story(suite: pytest.Pytester) -> None:
    result = run(suite, """
def test_it(survives_every_crash):
    survives_every_crash(shop(inbox=False), [Paid("1")], start=tables)
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "*test_it: 1 finding*", "*plugin_shop.py:*", "*the process dies here*", "*in the end: booked: too much (no='1')*",
        "*remedy: keep the inbox*",
    ])


def test_the_marker_says_how(suite: pytest.Pytester) -> None:
    run(suite, """
@pytest.mark.explore(budget=12, seed=3)
def test_it(survives_every_crash):
    report = survives_every_crash(shop(inbox=True), [Paid("1")], start=tables)
    assert (report.runs, report.seed, report.complete) == (12, 3, False)
    assert survives_every_crash(shop(inbox=True), [Paid("1")], start=tables, seed=4).seed == 4
""").assert_outcomes(passed=1)
