"""Log lines: one per fact, parsable, bounded, and never with a payload."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from bothends.telemetry import logs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, ours = root.handlers[:], root.level, logs.get().level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logs.get().setLevel(ours)


def lines(format: str, level: str = "info", **always: object) -> io.StringIO:
    stream = io.StringIO()
    logs.setup(format, level, stream, **always)
    return stream


def test_json_has_the_fields_that_were_given() -> None:
    stream = lines("json", role="work")
    logs.get("worker").info("parked", extra={"consumer": "a.b", "attempt": 2, "id": "m1", "key": b"k\xff", "none": None})
    line = json.loads(stream.getvalue())
    assert line.pop("at").endswith("Z")
    assert line == {
        "level": "info", "event": "parked", "role": "work", "consumer": "a.b", "attempt": 2, "id": "m1", "key": "0x6bff"}


def test_payloads_are_never_logged() -> None:
    stream = lines("json")
    logs.get().info("x", extra={"body": b"secret", "payload": "secret", "headers": [("a", b"secret")]})
    assert "secret" not in stream.getvalue()


def test_values_and_tracebacks_are_bounded() -> None:
    stream = lines("json")
    try:
        raise ValueError("x" * 50_000)
    except ValueError:
        logs.get().exception("y" * 50_000, extra={"consumer": "z" * 50_000, "many": list(range(10_000))})
    assert len(stream.getvalue()) < 20_000
    line = json.loads(stream.getvalue())
    assert line["error"].startswith("ValueError: xxx")
    assert len(line["many"]) == logs.FIELDS_MAX


def test_a_lone_surrogate_or_a_newline_does_not_break_the_line() -> None:
    for format in ("json", "text"):
        stream = lines(format)
        logs.get().warning("a\nb", extra={"key": "\ud800\n\x1b[31m"})
        text = stream.getvalue()
        assert text.count("\n") == 1
        assert "\x1b" not in text
        text.encode()


def test_text_is_key_and_value() -> None:
    stream = lines("text")
    logs.get().info("ready", extra={"consumers": ["a.b", "c.d"], "path": "/x y", "n": 3})
    assert stream.getvalue().split(" ", 1)[1] == 'info    ready consumers=a.b,c.d path="/x y" n=3\n'


def test_auto_is_json_where_there_is_no_terminal() -> None:
    stream = lines("auto")
    logs.get().info("x")
    assert json.loads(stream.getvalue())["event"] == "x"


def test_levels_and_other_loggers() -> None:
    stream = lines("json", "warning")
    logs.get("a").info("quiet")
    logs.get("a").warning("ours")
    logging.getLogger("other").info("quiet")
    logging.getLogger("other").error("theirs")
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line.get("logger")) for line in found] == [("ours", None), ("theirs", "other")]


def test_a_closed_pipe_does_not_stop_the_work() -> None:
    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise BrokenPipeError

    logs.setup("json", "info", Gone())
    logs.get().info("nobody reads this")
