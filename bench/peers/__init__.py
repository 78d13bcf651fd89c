"""Ours beside its peers: the bare client, one transaction per message, Debezium, Namastack and packages from PyPI [S1]."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.figures import figure, goal, ratios, report
from bench.peers.debezium import Debezium
from bench.peers.faststream_outbox import FaststreamOutbox
from bench.peers.namastack import Namastack
from bench.peers.omni_box import OmniBox
from bench.peers.ours import SOURCES, Ours
from bench.peers.pactix import Pactix
from bench.peers.peer import BODY_BYTES, TRANSACTION, Peer, Unavailable
from bench.peers.records import PARTITIONS
from bench.peers.references import OneByOne, Raw
from bench.peers.rounds import WARM, Sizes, one_round
from bench.peers.walbox import Walbox

__all__ = ["ALL", "measure"]

ROUNDS = 3
FULL = Sizes(backlog=1_000_000, live=1_000_000, seconds=8, warm_seconds=4)
QUICK = Sizes(backlog=2_000, live=1_000, seconds=1, warm_seconds=0.5)
PEERS_QUICK = ("raw", "ours-poll", "one-by-one")
"""Those that need nothing but this project's own environment."""
_MAKERS: Sequence[Callable[[], Peer]] = (
    Raw, *(lambda source=source: Ours(source) for source in SOURCES), OneByOne, Debezium, Namastack,
    OmniBox, FaststreamOutbox, Pactix, Walbox,
)
ALL: Mapping[str, Peer] = {peer.name: peer for peer in (make() for make in _MAKERS)}
UNITS = {
    "drain_per_s": ("events/s", 0), "live_per_s": ("events/s", 0), "live_warm_per_s": ("events/s", 0),
    "written_per_s": ("events/s", 0), "p50_ms": ("ms", 1), "p99_ms": ("ms", 1),
    "cpu_s": ("s of CPU per million events", 1), "postgresql_cpu_s": ("s of CPU per million events", 1),
    "kafka_cpu_s": ("s of CPU per million events", 1), "rss_mb": ("MB", 0), "swapped": ("records", 0),
    "again": ("records", 0),
}
GOALS = {"debezium": 5.0, "namastack": 30.0, "one-by-one": 50.0, "omni-box": 50.0, "pactix": 50.0}
"""How many times faster ours drains a backlog. Those with 50 wait for each record's answer before they send the next."""

WHILES = {"drain_per_s": "drain", "live_per_s": "live", "live_warm_per_s": "live, warm"}

Rounds = dict[str, list[dict[str, float]]]


def measure(rounds: int | None = None, quick: bool = False, only: Sequence[str] = ()) -> dict[str, Any]:
    names = list(only or (PEERS_QUICK if quick else ALL))
    if unknown := set(names) - set(ALL):
        raise SystemExit(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    rounds, sizes = rounds or (1 if quick else ROUNDS), QUICK if quick else FULL
    found: Rounds = {name: [] for name in names}
    missing: dict[str, str] = {}
    for name in names:
        try:
            ALL[name].fetch()
        except Unavailable as reason:
            missing[name] = str(reason)
    for number in range(1, rounds + 1):
        for name in names:
            if name not in missing:
                try:
                    found[name].append(one_round(ALL[name], sizes))
                except (Unavailable, SystemExit) as reason:
                    missing[name] = str(reason)
                _say(number, name, missing.get(name) or found[name][-1])
    complete = {name: each for name, each in found.items() if name not in missing}
    return report(
        "Peers: the same backlog, database and broker",
        f"""Each peer in turn, on a database and a topic ({PARTITIONS} partitions) of its own, by one relay process. Where a
        live figure is given, events of {BODY_BYTES}-byte bodies with 3 headers over 1,000 keys are written flat out, in
        transactions of {TRANSACTION}, to a relay that has just started and published {WARM} (live). It is ended, a backlog of
        the same events is committed, and a new process drains it; then, to this process, events are written flat out again
        (live, warm); then single-row transactions at an even rate (latency). Drained is from the first record to the last by
        the broker's clock, so no start is counted; live from the first write until all are in the topic, beside what was
        written per second. Latency is from the return of COMMIT to when a consumer with fetch.wait.max.ms=5 has the record.
        CPU is that of the relay's processes while it drained, memory the most they ever had resident. Each peer has the
        settings that were best here; order is what it promises, and what was seen. Rounds alternate.""",
        """Relay, database, broker, writers and consumer share two processors: a peer whose relay works less leaves them
        more. CPU of PostgreSQL and Kafka is that of the whole servers, neighbours included. Slow peers drain fewer events
        and, where they don't keep up, have their latency taken at a lower rate. A JVM that has run for an hour is faster
        than one that has run for seconds.""",
        setting={"rounds": rounds, "body_bytes": BODY_BYTES, "own_headers": 3, "keys": 1000, "partitions": PARTITIONS},
        figures=_figures(complete), goals=_goals(complete), table=_table(complete, missing, names, sizes),
    )


def _say(number: int, name: str, what: str | dict[str, float]) -> None:
    """A run takes many minutes: what is known is told at once."""
    told = what if isinstance(what, str) else ", ".join(f"{key} {value:,.1f}" for key, value in what.items())
    print(f"round {number}, {name}: {told}", file=sys.stderr, flush=True)


def _figures(found: Rounds) -> dict[str, dict[str, Any]]:
    return {
        f"{name}_{what}": figure([each[what] for each in rounds], *UNITS[what])
        for name, rounds in found.items() for what in UNITS if what in rounds[0]
    }


def _goals(found: Rounds) -> list[dict[str, Any]]:
    """Ours in each of its modes against each peer that was measured, round by round."""
    goals = []
    for ours in (name for name in found if name.startswith("ours-")):
        for peer, limit in GOALS.items():
            for what, words in WHILES.items() if peer == "debezium" else [("drain_per_s", "drain")]:
                if peer in found and what in found[peer][0]:
                    times = ratios([each[what] for each in found[ours]], [each[what] for each in found[peer]])
                    measured = figure(times, f"times {peer}", 1)
                    goals.append(goal("S1", f"{ours} {words} against {peer}", measured, "at least", limit))
    return goals


def _table(found: Rounds, missing: Mapping[str, str], names: Sequence[str], sizes: Sizes) -> dict[str, Any]:
    """For the page: a row per peer, that of one which could not be measured with the reason."""
    rows: list[dict[str, Any]] = []
    for name in names:
        peer, rounds = ALL[name], found.get(name, [])
        figures = _figures({name: rounds}) if rounds else {}
        rows.append({
            "peer": name, "version": peer.version, "settings": peer.settings, "events": min(peer.backlog, sizes.backlog),
            "figures": {key.removeprefix(f"{name}_"): value for key, value in figures.items()},
            "rate_per_s": peer.rate, "order": peer.order, "durability": peer.durability, "missing": missing.get(name, ""),
        })
    return {"kind": "peers", "rows": rows}
