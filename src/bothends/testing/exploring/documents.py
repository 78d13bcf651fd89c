"""Reports for programs: JSON and JUnit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from bothends.testing.exploring.reports import Finding, Report, as_text
from bothends.testing.exploring.stories import Line, relative

__all__ = ["as_dict", "as_junit"]


def as_dict(name: str, reports: Sequence[Report]) -> dict[str, Any]:
    """What ``check --json`` prints."""
    return {
        "app": name,
        "ok": all(reports),
        "findings": sum(len(report.findings) for report in reports),
        "boundaries": sum(report.boundaries for report in reports),
        "runs": sum(report.runs for report in reports),
        "cases": [_report(report) for report in reports],
    }


def _report(report: Report) -> dict[str, Any]:
    return {
        "case": report.name, "ok": report.ok, "boundaries": report.boundaries, "runs": report.runs,
        "failed_runs": report.failed, "depth": report.depth, "seed": report.seed, "complete": report.complete,
        "notes": list(report.notes), "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "cause": finding.cause.name.lower(), "meaning": finding.cause.meaning, "remedy": finding.remedy,
        "consumer": finding.consumer,
        "where": None if finding.where is None else {
            "file": relative(finding.where).rpartition(":")[0], "line": finding.where.line,
            "function": finding.where.function,
        },
        "faults": [
            {"boundary": boundary.number, "fault": fault.value, "kind": boundary.kind.value, "process": boundary.process,
             "consumer": boundary.consumer, "message": boundary.message}
            for fault, boundary in finding.faults
        ],
        "story": [_line(line) for line in finding.story],
        "in_the_end": list(finding.ending), "runs": finding.runs,
    }


def _line(line: Line) -> dict[str, Any]:
    told: dict[str, Any] = {"actor": line.actor, "text": line.text, "kind": line.kind}
    if line.where is not None:
        told["where"] = relative(line.where)
    return told


def as_junit(name: str, reports: Sequence[Report]) -> str:
    """One test case per case; its findings are its failure."""
    suite = ElementTree.Element("testsuite", {
        "name": f"bothends check {name}", "tests": str(len(reports)), "failures": str(sum(not r.ok for r in reports)),
        "errors": "0", "skipped": "0",
    })
    for report in reports:
        case = ElementTree.SubElement(suite, "testcase", {"classname": name, "name": report.name})
        text = _without_controls(as_text(report))
        if not report.ok:
            failure = ElementTree.SubElement(case, "failure", {
                "type": report.findings[0].cause.name.lower(), "message": _without_controls(report.findings[0].title)})
            failure.text = text
        else:
            ElementTree.SubElement(case, "system-out").text = text
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _without_controls(text: str) -> str:
    """XML has no control characters but tab and line feed."""
    return "".join(c if c in "\t\n" or (c.isprintable() and c < "\ufffe") else "\ufffd" for c in text)
