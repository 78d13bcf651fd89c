"""What the pages name exists: links, commands, options, variables, functions."""

import importlib
import re
from pathlib import Path

import pytest

from bothends.settings import DECLARED
from tests.conftest import VARIABLES
from tests.docs.command_line import commands, options_of
from tests.docs.pages import ROOT, anchors, links, pages

COMMANDS = dict(commands())
_GROUPS = {" ".join(name.split()[:n]) for name in COMMANDS for n in range(1, len(name.split()))}
_COMMAND = re.compile(r"\bbothends (?:--debug )?([a-z]+)(?: ([a-z-]+))?([^`\n]*)")
_OTHER_OPTIONS = {"--randomly-seed"}  # pytest's
_OTHER_VARIABLES = {"BOTHENDS_APP", "BOTHENDS_DEBUG", "BOTHENDS_TEST_ORDERS"}


def _id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(params=pages(), ids=_id)
def page(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def code(page: Path) -> list[str]:
    """What stands in code on a page: lines of shell blocks, and spans of the prose."""
    found: list[str] = []
    language: str | None = None
    for line in page.read_text("utf-8").splitlines():
        if line.lstrip().startswith("```"):
            language = line.strip().removeprefix("```") if language is None else None
        elif language == "sh":
            found.append(line)
        elif language is None:
            found += re.findall(r"`([^`]+)`", line)
    return found


def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (fragment and fragment not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_no_link_leaves_the_repository(page: Path) -> None:
    assert [link for link in links(page) if "://" not in link and
            not (page.parent / link.partition("#")[0]).resolve().is_relative_to(ROOT)] == []


def test_every_command_and_option_exists(page: Path) -> None:
    wrong = []
    for text in code(page):
        for first, second, rest in _COMMAND.findall(text):
            name = f"bothends {first} {second}" if f"bothends {first}" in _GROUPS else f"bothends {first}"
            if name.strip() in _GROUPS:  # a group alone, as in "`bothends dead`"
                continue
            if name not in COMMANDS:
                wrong.append(text)
                continue
            words = f"{second} {rest}".split("&&")[0].split("|")[0]
            given = re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", words)
            wrong += [f"{text}: {option}" for option in given if option not in options_of(COMMANDS[name])]
    assert wrong == []


def test_options_named_alone_exist(page: Path) -> None:
    """``--yes`` in a sentence is an option of one of our commands at least."""
    every = set().union(*map(options_of, COMMANDS.values())) | {"--debug"}
    alone = {found.group(0) for text in code(page) if (found := re.match(r"--[a-z][a-z-]*", text)) is not None}
    assert alone - every - _OTHER_OPTIONS == set()


def test_every_variable_exists(page: Path) -> None:
    known = _OTHER_VARIABLES | set(VARIABLES.values()) | {f"BOTHENDS_{name.upper()}" for name in DECLARED}
    named = set(re.findall(r"\bBOTHENDS_[A-Z0-9_]*[A-Z0-9]\b", page.read_text("utf-8")))
    plain = {re.sub(r"_FILE$", "", name) for name in named}
    own = {name for name in plain if any(name.endswith(f"_{s.upper()}") for s in DECLARED)}  # BOTHENDS_<SERVICE>_X
    assert plain - known - own - {"BOTHENDS_X", "BOTHENDS"} == set()


def test_every_import_that_is_named_exists(page: Path) -> None:
    missing = []
    for text in code(page):
        for path in re.findall(r"\bbothends(?:\.[a-z_]+)+(?:\.[A-Za-z_]+)?", text):
            module, _, attribute = path.rpartition(".")
            if path.endswith((".toml", ".db", ".md")) or re.search(r"^\W*bothends\.(dead|keys)\b", text):
                continue
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                if not hasattr(importlib.import_module(module), attribute):
                    missing.append(path)
    assert missing == []


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    led_to = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    there = {page for page in pages() if page.is_relative_to(ROOT / "docs") and page != index}
    assert there - led_to == set()


def test_nothing_says_more_than_it_knows() -> None:
    """Words of advertisement, and of things not yet there, do not stand in the pages."""
    banned = re.compile(r"\b(blazing|seamless|effortless|world-class|simply|just works|coming soon|TODO|TBD)\b", re.IGNORECASE)
    assert [(page.name, found.group(0)) for page in pages() for found in banned.finditer(page.read_text("utf-8"))] == []
