"""Reports as one HTML page, whose timelines are drawn. Nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from bothends.testing.exploring.reports import Finding, Report, summary
from bothends.testing.exploring.stories import Line, relative

__all__ = ["as_page", "as_svg"]

_ROW, _LANE, _TOP, _WIDTH = 22, 26, 16, 980
_CHARACTER = 7.2
_TEXT_MAX = 92

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --quiet: #6b7686; --line: #c9d1dc;
  --bad: #c0392b; --again: #b7791f; --good: #2e7d4f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --paper: #14181f; --quiet: #98a3b3; --line: #3a4454; --bad:
  #ff7b6b; --again: #f0b85a; --good: #6fcf97; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1.05rem; margin-top: 2rem; }
.quiet { color: var(--quiet); } .bad { color: var(--bad); } .good { color: var(--good); }
code { font-family: ui-monospace, monospace; font-size: 0.92em; } dt { font-weight: 600; } dd { margin: 0 0 0.6rem; }
.story { overflow-x: auto; } svg { font: 12px ui-monospace, monospace; } svg text { fill: var(--ink); }
svg .lane { stroke: var(--line); stroke-width: 2; } svg .step { fill: var(--ink); } svg .fault { stroke: var(--bad);
  stroke-width: 2.5; } svg .again { fill: var(--again); } svg .outcome { fill: var(--paper); stroke: var(--ink); }
svg text.fault-text { fill: var(--bad); font-weight: 600; stroke: none; } svg text.again-text { fill: var(--again); }
svg text.quiet { fill: var(--quiet); }
"""


def as_page(name: str, reports: Sequence[Report]) -> str:
    """The whole page."""
    return "\n".join(_page(name, reports)) + "\n"


def _page(name: str, reports: Sequence[Report]) -> Iterator[str]:
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>bothends check {escape(name)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style></head><body>"
    yield f"<h1>What can go wrong in <code>{escape(name)}</code></h1>"
    for report in reports:
        yield f'<h2 class="{"good" if report.ok else "bad"}">{escape(summary(report))}</h2>'
        for note in report.notes:
            yield f'<p class="quiet">{escape(note)}</p>'
        for finding in report.findings:
            yield from _finding(finding)
    yield "</body></html>"


def _finding(finding: Finding) -> Iterator[str]:
    yield f"<section><h3>{escape(finding.title)}</h3>"
    if finding.where is not None:
        yield f"<p>at <code>{escape(relative(finding.where))}</code>, in <code>{escape(finding.where.function)}</code></p>"
    yield f'<div class="story">{as_svg(finding)}</div><dl>'
    for ended in finding.ending:
        yield f'<dt>in the end</dt><dd class="bad"><code>{escape(ended)}</code></dd>'
    yield f"<dt>likely cause</dt><dd>{escape(finding.cause.meaning)}</dd>"
    yield f"<dt>remedy</dt><dd>{escape(finding.remedy)}</dd></dl></section>"


def as_svg(finding: Finding) -> str:
    """The timeline: a lane for each who acts, time downwards."""
    return "".join(_svg(finding.story, finding.title))


def _svg(story: Sequence[Line], title: str) -> Iterator[str]:
    actors = list(dict.fromkeys(line.actor for line in story if line.actor))
    lanes = {actor: 14 + n * _LANE for n, actor in enumerate(actors)}
    left = 14 + len(actors) * _LANE + 6
    names = _TOP + len(actors) * 16
    height = names + len(story) * _ROW + 10
    yield (f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{height}" '
           f'viewBox="0 0 {_WIDTH} {height}"><title>{escape(title)}</title>')
    for n, (actor, x) in enumerate(lanes.items()):
        y = _TOP + n * 16
        yield f'<path class="lane" d="M{x} {y + 4}V{height - 8}"/>'
        yield f'<text class="quiet" x="{x + 6}" y="{y + 4}">{escape(actor)}</text>'
    for n, line in enumerate(story):
        yield from _row(line, lanes.get(line.actor), left, names + n * _ROW + _ROW // 2)
    yield "</svg>"


def _row(line: Line, x: int | None, left: int, y: int) -> Iterator[str]:
    if x is not None and line.kind == "fault":
        yield f'<path class="fault" d="M{x - 6} {y - 6}L{x + 6} {y + 6}M{x + 6} {y - 6}L{x - 6} {y + 6}"/>'
    elif x is not None:
        yield f'<circle class="{line.kind}" cx="{x}" cy="{y}" r="{5 if line.kind == "outcome" else 4}"/>'
    text = line.text if len(line.text) <= _TEXT_MAX else line.text[: _TEXT_MAX - 1] + "…"
    styled = f' class="{line.kind}-text"' if line.kind in ("fault", "again") else ""
    yield f'<text{styled} x="{left}" y="{y + 4}">{escape(text)}</text>'
    if line.where is not None and line.kind != "fault":
        at = left + max(len(text) + 2, 0) * _CHARACTER
        yield f'<text class="quiet" x="{at:.0f}" y="{y + 4}">{escape(relative(line.where))}</text>'
