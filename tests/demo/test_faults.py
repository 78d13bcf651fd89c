from collections import Counter

import pytest

from bothends.demo.faults import KINDS, Kind, plan

PROCESSES = ["relay-1", "relay-2", "work-inventory", "work-payments", "work-analytics"]
CONSUMERS = ["inventory.stock", "payments.charge", "analytics.revenue"]


def acts(kind: Kind, invoices: int = 16_459, seed: int = 1) -> Counter[str]:
    return Counter(fault.act for fault in plan(kind, seed, invoices, PROCESSES, CONSUMERS))


def test_nine_months_with_everything() -> None:
    assert acts("all") == {"kill": 41, "rewind": 3, "forget": 2, "broker outage": 1, "database outage": 1}


@pytest.mark.parametrize(
    ("kind", "found"),
    [("none", set()), ("crash", {"kill"}), ("acks", {"rewind", "forget"}),
     ("outage", {"broker outage", "database outage"})],
)  # fmt: skip
def test_each_kind_is_only_itself(kind: Kind, found: set[str]) -> None:
    assert set(acts(kind)) == found


@pytest.mark.parametrize(("invoices", "kills"), [(1, 5), (2_000, 5), (2_400, 6), (16_459, 41)])
def test_kills_grow_with_the_orders(invoices: int, kills: int) -> None:
    assert acts("crash", invoices)["kill"] == kills


@pytest.mark.parametrize("seed", range(20))
def test_moments_lie_within_the_run_in_order(seed: int) -> None:
    faults = plan("all", seed, 16_459, PROCESSES, CONSUMERS)
    moments = [fault.at for fault in faults]
    assert moments == sorted(moments)
    assert moments[0] == 0.0  # a relay forgets while orders are being placed
    assert 0 < moments[1]
    assert moments[-1] < 0.95
    assert all(1 <= fault.size <= 500 for fault in faults if fault.act == "rewind")
    assert {fault.target for fault in faults if fault.act == "rewind"} == set(CONSUMERS)


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_kills_every_process_once(seed: int) -> None:
    assert Counter(fault.target for fault in plan("crash", seed, 10, PROCESSES, CONSUMERS)) == Counter(PROCESSES)


def test_the_seed_decides() -> None:
    assert plan("all", 1, 16_459, PROCESSES, CONSUMERS) == plan("all", 1, 16_459, PROCESSES, CONSUMERS)
    assert plan("all", 1, 16_459, PROCESSES, CONSUMERS) != plan("all", 2, 16_459, PROCESSES, CONSUMERS)
    assert KINDS == ("none", "crash", "acks", "outage", "all")
