"""tests/conftest.py: a missing service deselects with one closing line, and fails with CI=true."""

from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text()
TESTS = """
    import pytest

    def test_by_fixture(pg_database): raise AssertionError("ran")

    @pytest.mark.needs("kafka")
    def test_by_marker(): raise AssertionError("ran")

    @pytest.mark.orders
    def test_orders(orders_files): raise AssertionError("ran")

    def test_plain(topic_prefix): assert topic_prefix
"""


@pytest.fixture
def project(pytester, monkeypatch, tmp_path):
    for name in ("POSTGRESQL", "POSTGRESQL18", "KAFKA", "KAFKA_PROXIED"):
        monkeypatch.delenv(f"BOTHENDS_TEST_{name}_URL", raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("BOTHENDS_TEST_ORDERS", str(tmp_path / "absent"))
    pytester.makeini("[pytest]\nmarkers = orders: needs the order data\naddopts = --strict-markers\n")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TESTS)
    return pytester


@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_locally_they_are_deselected_and_one_line_says_so(project, processes):
    result = project.runpytest_subprocess("-q", *processes)
    assert result.ret == 0
    counted = result.parseoutcomes()
    assert counted["passed"] == 1
    assert not {"skipped", "skips", "failed", "errors"} & counted.keys()
    lines = [line for line in result.outlines if line.startswith("not tested, because missing:")]
    assert len(lines) == 1
    assert "kafka, postgresql, the order data" in lines[0]


def test_in_ci_a_missing_service_fails_and_missing_order_data_does_not(project, monkeypatch):
    monkeypatch.setenv("CI", "true")
    result = project.runpytest_subprocess("-q")
    result.assert_outcomes(passed=1, errors=2, deselected=1)
    result.stdout.fnmatch_lines(["*BOTHENDS_TEST_POSTGRESQL_URL not set: with CI=true a missing service is a failure*"])


def test_an_unknown_service_in_a_marker_is_an_error(project):
    project.makepyfile(test_other="import pytest\n@pytest.mark.needs('kafak')\ndef test_typo(): pass\n")
    result = project.runpytest_subprocess("-q")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "kafka_proxied" in result.stderr.str() + result.stdout.str()
