"""Pages: what README and docs consist of, as the tests need it: code blocks, links, and what is named in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "anchors", "blocks", "links", "pages"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(\s*)```(\S*)\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*$")
_NAME = re.compile(r"^(?:#|--|//|<!--)\s*([A-Za-z0-9_./-]+\.(?:py|toml|json|sql|sh|csv))\b")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``section`` counts the headings of level 1 and 2 above it."""

    page: str
    line: int
    language: str
    text: str
    section: int

    @property
    def file(self) -> str | None:
        """The file that the block says it is, in its first line: ``# shop.py``."""
        found = _NAME.match(self.text)
        return found.group(1) if found and self.language != "sh" else None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, CONTRIBUTING, and every page of docs that is kept up to date: decision records are not."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    return found + [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "adr"]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    lines: list[str] = []
    section = 0
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence is not None:
                indent, language = fence.groups()
                opened, lines = (number, str(indent), str(language)), []
            elif line.startswith(("# ", "## ")):
                section += 1
        elif fence is not None and not fence.group(2):
            line_of, _, language = opened
            found.append(Block(name, line_of, language, "\n".join(lines) + "\n", section))
            opened = None
        else:
            lines.append(line.removeprefix(opened[1]))
    if opened is not None:
        raise ValueError(f"{name}:{opened[0]}: a block is opened and not closed")
    return found


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    kept: list[str] = []
    inside = False
    for line in page.read_text("utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    """Targets of links and pictures, those of other sites included."""
    return [a or b for a, b in _LINK.findall(prose(page))]


def anchors(page: Path) -> set[str]:
    """The fragments that headings make, as GitHub names them."""
    found: set[str] = set()
    for line in prose(page).splitlines():
        if (heading := _HEADING.match(line)) is not None:
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(2)).replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-"))
    return found
