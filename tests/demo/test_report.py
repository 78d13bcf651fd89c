import json

import pytest

from bothends.demo.audit import Findings
from bothends.demo.report import Report
from bothends.demo.result import Result

FIXED = [
    "events", "published", "deliveries", "duplicates", "conflicts", "parked", "dead", "lost", "double_effects",
    "order_violations", "kills", "acks_lost", "outages", "seconds", "events_per_second", "ok",
]


def good() -> Result:
    return Result(events=2000, published=3500, kills=5, seconds=12.5, events_per_second=160.0)


def test_the_last_line_is_one_object_with_the_fixed_keys(capsys: pytest.CaptureFixture[str]) -> None:
    result = good()
    result.judge(settled=True)
    with Report(as_json=True) as report:
        report.phase("auditing")
        report.note("50%  SIGKILL relay-1 (child, pid 4)")
        report.progress(0.5)
        report.show(result)
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert [key for key in FIXED if key not in shown] == []
    assert (shown["ok"], shown["events"], shown["kills"]) == (True, 2000, 5)
    assert "SIGKILL relay-1" in err
    assert "processes killed" in err


def test_people_get_a_table_and_no_json(capsys: pytest.CaptureFixture[str]) -> None:
    result = good()
    result.judge(settled=True)
    with Report(as_json=False) as report:
        report.show(result)
    out, err = capsys.readouterr()
    assert "ok: nothing lost" in out
    assert "{" not in out
    assert err == ""


@pytest.mark.parametrize(
    "name", ["lost", "double_effects", "order_violations", "conflicts", "parked", "dead", "unexpected", "wrong_sums"]
)
def test_one_of_anything_wrong_is_not_ok(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = good()
    setattr(result, name, 1)
    result.judge(settled=True)
    assert not result.ok
    with Report(as_json=False) as report:
        report.show(result)
    assert "not ok" in capsys.readouterr().out


def test_what_has_not_settled_is_not_ok() -> None:
    result = good()
    result.judge(settled=False)
    assert not result.ok


def test_findings_are_taken_over_with_their_examples() -> None:
    findings = Findings()
    findings.note("lost", "no effect of 536365")
    findings.note("wrong_sums", "product 'x'", 2)
    result = good()
    result.take(findings)
    assert (result.lost, result.wrong_sums) == (1, 2)
    assert result.problems == ["lost: no effect of 536365", "wrong_sums: product 'x'"]
