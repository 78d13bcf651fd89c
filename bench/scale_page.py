"""The tables of docs/explanation/scale.md, made from the result of the bench `scale`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.scale import DATABASES, LANES, RELAYS

__all__ = ["BEGIN", "END", "tables", "write"]

BEGIN, END = "<!-- made by `python -m bench scale`: begin -->", "<!-- end -->"
_KINDS = {
    "bare": "a business transaction of one INSERT", "add": "the same, with `add`",
    "pipelined_add": "the same, pipelined", "page_of_1": "a relay's page with one event",
    "page_of_2000": "a relay's page with 2,000 events", "batch_of_1": "a worker's batch with one message, one UPDATE",
    "batch_of_100": "a worker's batch with 100 messages, an UPDATE each",
}


def write(result: dict[str, Any], page: Path) -> None:
    """Puts the tables between the marks."""
    head, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{head}{BEGIN}\n{tables(result)}{END}{rest.partition(END)[2]}")


def tables(result: dict[str, Any]) -> str:
    found = result["figures"]

    def value(name: str) -> str:
        number = found[name]["median"]
        return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:g}"

    lines = ["\nCounted:\n", "| | Statements | Round trips | Bytes of log |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {value(f'{kind}_statements')} | {value(f'{kind}_trips')} | {value(f'{kind}_wal_bytes')} |"
        for kind, what in _KINDS.items()
    ]
    lines += [
        f"\nOn disk, with its indexes, an event in the outbox takes {value('outbox_row_bytes')} bytes and a message in the "
        f"inbox {value('inbox_row_bytes')}. Measured elsewhere (names as in [benchmarks](../benchmarks.md)): "
        + ", ".join(f"`{name}` {result['setting'][name]:g}" for name in (
            "relay_per_s", "relay_cpu_us", "worker_1_per_s", "add_us", "bare_us")) + ".",
        f"\nCalculated, for {result['setting']['events_per_day']:,} events a day with peaks of {result['setting']['peak']} "
        "times the mean, spread over so many databases:\n",
        f"| | {' | '.join(str(n) for n in DATABASES)} | |", f"|---|{'---|' * len(DATABASES)}---|",
    ]
    for name in (
        "peak_per_s", "outbox_wal_mb_s", "inbox_wal_mb_s", "wal_gb_day", "child_s", "outbox_gb", "inbox_gb", "freeze_h",
        "relays", "relay_cores", "workers", "adding",
    ):
        each = " | ".join(value(f"{name}_{n}") for n in DATABASES)
        lines.append(f"| `{name}` | {each} | {found[f'{name}_{DATABASES[0]}']['unit']} |")
    lines += [
        "\nSimulated: the worst of all runs, seconds and lanes:\n",
        "| Lanes | Relays | All lanes have a relay after | A dead relay's lanes go on after (same host) | "
        "A lane is nobody's, when a relay joins | Most lanes less least | Relays without lanes |",
        "|---|---|---|---|---|---|---|",
    ]
    for lanes in LANES:
        for crew in RELAYS:
            one = f"{lanes}_lanes_{crew}_relays"
            lines.append(
                f"| {lanes:,} | {crew} | {found[f'{one}_start_s']['max']} | {found[f'{one}_takeover_s']['max']} "
                f"({found[f'{one}_takeover_here_s']['max']}) | {found[f'{one}_handover_s']['max']} | "
                f"{found[f'{one}_spread']['max']} | {found[f'{one}_idle']['max']} |")
    return "\n".join(lines) + "\n\n![takeover, handover and spread](../../bench/results/scale.svg)\n"
