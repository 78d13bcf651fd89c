"""The reference pages against the code that they describe."""

import re

import pytest

from bothends import errors
from bothends.codecs.cloudevents import ATTRIBUTES, pack_attributes, to_headers
from bothends.drafts import LIMITS
from bothends.settings import reference as settings_reference
from bothends.worker.deliveries import ATTEMPTS_HEADER
from bothends.worker.forwarding import ERROR_HEADER, NOT_BEFORE_HEADER, ORIGIN_HEADER
from tests.docs.command_line import reference as command_line_reference
from tests.docs.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"
RAISED = [getattr(errors, name) for name in errors.__all__ if name not in ("Blame", "BothendsError")]


def rows(page: str, heading: str | None = None) -> list[list[str]]:
    """The cells of every table row of a page, or of one section of it."""
    text = (REFERENCE / page).read_text("utf-8")
    if heading is not None:
        text = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def named(cells: list[list[str]]) -> set[str]:
    return {name for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def test_settings_are_as_the_table_says() -> None:
    page = (REFERENCE / "settings.md").read_text("utf-8")
    assert page == settings_reference(), "python -m bothends.settings > docs/reference/settings.md"


def test_the_command_line_is_as_it_says() -> None:
    page = (REFERENCE / "command-line.md").read_text("utf-8")
    assert page == command_line_reference(), "python -m tests.docs.command_line > docs/reference/command-line.md"


@pytest.mark.parametrize("error", RAISED, ids=lambda e: e.__name__)
def test_each_error_has_its_row_and_its_blame(error: type[Exception]) -> None:
    [row] = [row for row in rows("errors.md") if row[0] == f"`{error.__name__}`"]
    if error is errors.PublishError:
        assert row[1] == "broker, place or event"
    elif issubclass(error, errors.BothendsError):
        assert row[1] == error.blame.value
        assert all(row)
    else:
        assert len(row) == 2


def test_no_row_names_an_error_that_is_none() -> None:
    there = {error.__name__ for error in RAISED}
    camel = {name for name in named(rows("errors.md")) if re.fullmatch(r"(?:[A-Z][a-z]+)+", name)}
    assert camel <= there


def test_every_blame_is_named() -> None:
    text = (REFERENCE / "errors.md").read_text("utf-8")
    [line] = [line for line in text.splitlines() if line.startswith("Blame is one of")]
    assert re.findall(r"`([a-z]+)`", line) == [blame.value for blame in errors.Blame]


def test_reasons_are_those_that_the_code_gives() -> None:
    """Every reason on the page stands as a string in the source, and the reasons of consuming are all on the page."""
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    listed = named(rows("errors.md", "Reasons of dead letters")) | named(rows("errors.md", "Events that the broker refused"))
    assert {reason for reason in listed if f'"{reason}"' not in source} == set()
    consuming = (ROOT / "src/bothends/core/consuming.py").read_text("utf-8")
    given = set(re.findall(r'return "([a-z_]+)", (?:True|False)', consuming)) | {"worker_lost", "outcome_unknown"}
    assert given <= listed


def test_the_headers_are_those_on_the_wire() -> None:
    written = to_headers(
        "id", "source", "type", "2026-01-01T00:00:00Z", 1, b"key", "application/json",
        pack_attributes(dict.fromkeys(ATTRIBUTES, "x")), None,
    )
    assert named(rows("envelope.md", "Headers")) == {name for name, _ in written}


def test_the_headers_of_retry_topics() -> None:
    assert named(rows("envelope.md", "Headers of retry topics")) == {
        ATTEMPTS_HEADER, NOT_BEFORE_HEADER, ERROR_HEADER, ORIGIN_HEADER,
    }


def test_the_limits_are_those_of_add() -> None:
    found = [int(re.findall(r"\d+", row[1])[0]) for row in rows("envelope.md", "Limits")[1:]]
    assert found == [
        LIMITS.event_bytes, LIMITS.key_bytes, LIMITS.topic_chars, LIMITS.type_chars, LIMITS.id_chars,
        LIMITS.header_name_chars, LIMITS.headers, LIMITS.attribute_bytes, LIMITS.delay.days,
    ]
