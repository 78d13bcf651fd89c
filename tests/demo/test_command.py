"""The command: wrong use is told and costs nothing; whole runs, with real processes, are in test_runs."""

from pathlib import Path

import pytest

from bothends.cli import run
from bothends.demo.run import Options
from bothends.demo.world import World


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the demo was started")

    monkeypatch.setattr("bothends.demo.run.World", refuse)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--source", "wal"], "--database postgresql://... for wal"),
        (["--source", "message"], "--database postgresql://... for message"),
        (["--source", "fast"], "source"),
        (["--faults", "some"], "faults"),
        (["--events", "0"], "events"),
        (["--events", "many"], "events"),
        (["--database", "mysql://x/y"], "database"),
        (["--database", "sqlite:///x.db"], "postgresql://"),
        (["--broker", "amqp://x"], "broker"),
        (["--broker", "memory://"], "kafka://"),
        (["one.csv"], "--orders"),
        (["--orders", "no-such-file.csv"], "no-such-file.csv"),
        (["--orders", "no-such-file.csv", "--events", "5"], "--events"),
        (["--colour"], "colour"),
    ],
)
def test_wrong_use_is_status_two_and_names_the_option(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert says in err + out


def test_a_file_without_orders_is_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n")
    assert run(["demo", "--orders", str(path)]) == 2
    assert "not one order" in "".join(capsys.readouterr())


def test_a_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(
        "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country\n1,A,d,two,x,1.00,7,UK\n"
    )
    assert run(["demo", "--orders", str(path)]) == 2
    assert "bad.csv:2" in "".join(capsys.readouterr())


def test_passwords_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--database", "mysql://root:hunter2@x/y"]) == 2
    assert "hunter2" not in "".join(capsys.readouterr())


def test_the_source_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Options] = []

    class Asked(Exception):
        pass

    def remember(options: Options, report: object) -> None:
        asked.append(options)
        raise Asked

    monkeypatch.setattr("bothends.demo.run.run_demo", remember)
    for source in ("auto", "poll", "wal", "message"):
        assert run(["demo", "--source", source, "--database", "postgres://u@h/d"]) == 1
    assert run(["demo"]) == 1
    assert [options.relay_source for options in asked] == ["auto", "poll", "wal", "message", "auto"]
    world = World("demo-1a", tmp_path, "postgresql://h/d", "kafka://k:1", relay_source="message")
    assert world.environ({})["BOTHENDS_RELAY_SOURCE"] == "message"
