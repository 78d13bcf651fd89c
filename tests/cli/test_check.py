"""``bothends check``: exit statuses, and its reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bothends.cli import run

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_the_naive_shop_withdraws_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "examples.lessons.naive_shop"]) == 1
    told = capsys.readouterr().out
    assert "in the end: stock: units is 6 instead of 8" in told
    assert "examples/lessons/naive_shop.py" in told
    assert "✗ the process dies here" in told
    assert "keep the inbox (inbox=True, the default)" in told


def test_the_demo_has_no_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "bothends.demo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert told["findings"] == 0
    assert told["boundaries"] > 200
    assert told["runs"] > 300
    assert [case["case"] for case in told["cases"]] == ["orders_and_a_cancellation", "an_order_without_a_price"]
    assert all(case["complete"] and not case["notes"] for case in told["cases"])


def test_the_demo_has_no_finding_on_the_postgresql_that_it_is_configured_with(
    postgresql_url: str,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bothends", "check", "bothends.demo", "--json", "--case", "an_order_without_a_price"],
        env=os.environ | {"BOTHENDS_DATABASE_URL": postgresql_url}, capture_output=True, text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    (case,) = json.loads(done.stdout)["cases"]
    assert case["complete"]
    assert not case["notes"]
    assert case["boundaries"] > 60


def test_the_reports_of_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    junit, html = tmp_path / "check.xml", tmp_path / "check.html"
    status = run(["check", "examples.lessons.naive_shop", "--json", "--junit", str(junit), "--html", str(html)])
    assert status == 1
    told = json.loads(capsys.readouterr().out)
    (case,) = told["cases"]
    finding = next(one for one in case["findings"] if one["consumer"] == "naive-shop.warehouse")
    assert finding["cause"] == "no_mark"
    assert finding["where"]["file"] == "examples/lessons/naive_shop.py"
    assert finding["where"]["function"] == "reserve"
    assert finding["faults"][0]["fault"] == "crash after"
    assert [line["kind"] for line in finding["story"]].count("fault") == 1

    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    failure = suite.find("testcase/failure")
    assert failure is not None
    assert "units is 6 instead of 8" in (failure.text or "")

    page = html.read_text("utf-8")
    assert page.count("<svg") == len(case["findings"])
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    for number, part in enumerate(page.split("<svg")[1:]):
        ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")
        assert "the process dies here" in part, number


def test_only_one_case_and_a_small_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "bothends.demo", "--case", "an_order_without_a_price", "--budget", "20"]) == 0
    told = capsys.readouterr().out
    assert "an_order_without_a_price: 0 findings (" in told
    assert "the budget was used up" in told
    assert "orders_and_a_cancellation" not in told


def test_no_case_is_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "caseless_app.py").write_text(
        "from bothends import Service\nshop = Service('caseless')\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["check", "caseless_app"]) == 2
    assert "no case to check" in capsys.readouterr().err


def test_a_case_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "bothends.demo", "--case", "nothing"]) == 2
    assert "there is no case 'nothing'" in capsys.readouterr().err
