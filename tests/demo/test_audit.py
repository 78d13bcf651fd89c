"""The audit must find what is planted. A run that did everything right is the base of each case."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from bothends.demo.audit import Charge, Effect, Findings, Sums, audit, plain_sums
from bothends.demo.export import read_export, write_export
from bothends.demo.orders import Order
from bothends.demo.seeded import make_orders

CONSUMERS = ("inventory.stock", "payments.charge", "analytics.revenue")
CONFIRMED = "analytics.confirmations"


@dataclass
class Run:
    orders: list[Order]
    effects: dict[str, list[Effect]]
    charges: list[Charge]
    sums: dict[str, Sums]

    def audit(self) -> Findings:
        return audit(self.orders, self.effects, self.charges, self.sums, only_charged=frozenset({CONFIRMED}))

    def renumber(self, consumer: str) -> None:
        self.effects[consumer] = [row._replace(seq=n) for n, row in enumerate(self.effects[consumer], 1)]


@pytest.fixture
def run() -> Run:
    orders = make_orders(7, 200)
    rows = [Effect(n, f"e-{o.invoice}", o.invoice, o.key) for n, o in enumerate(orders, 1)]
    charged = {o.invoice for o in orders if o.charge}
    effects = {consumer: list(rows) for consumer in CONSUMERS}
    effects[CONFIRMED] = [row for row in rows if row.invoice in charged]
    charges = [Charge(*o.charge) for o in orders if o.charge]
    return Run(orders, effects, charges, dict(plain_sums(orders)))


def counts(findings: Findings) -> dict[str, int]:
    names = ("lost", "double_effects", "order_violations", "unexpected", "wrong_sums")
    return {name: getattr(findings, name) for name in names if getattr(findings, name)}


def test_a_right_run_is_right(run: Run) -> None:
    findings = run.audit()
    assert findings.ok
    assert counts(findings) == {}
    assert findings.examples == []


def test_rows_may_come_in_any_order_across_keys_and_in_any_listing(run: Run) -> None:
    run.effects["inventory.stock"].sort(key=lambda row: (row.key, row.seq))
    run.renumber("inventory.stock")
    run.effects["inventory.stock"].reverse()
    assert run.audit().ok


@pytest.mark.parametrize("consumer", [*CONSUMERS, CONFIRMED])
def test_a_lost_effect_is_found(run: Run, consumer: str) -> None:
    del run.effects[consumer][17]
    findings = run.audit()
    assert counts(findings) == {"lost": 1}
    assert not findings.ok
    assert consumer in findings.examples[0]


@pytest.mark.parametrize("consumer", [*CONSUMERS, CONFIRMED])
def test_a_double_effect_is_found(run: Run, consumer: str) -> None:
    run.effects[consumer] += [run.effects[consumer][3]._replace(seq=9_999)] * 2
    assert counts(run.audit()) == {"double_effects": 2}


def test_swapped_effects_of_one_key_are_found(run: Run) -> None:
    rows = run.effects["payments.charge"]
    key = max({row.key for row in rows}, key=lambda key: sum(row.key == key for row in rows))
    first, second, *_ = [n for n, row in enumerate(rows) if row.key == key]
    rows[first], rows[second] = rows[second], rows[first]
    run.renumber("payments.charge")
    assert counts(run.audit()) == {"order_violations": 1}


def test_a_late_first_effect_counts_once_however_many_it_missed(run: Run) -> None:
    rows = run.effects["analytics.revenue"]
    key = max({row.key for row in rows}, key=lambda key: sum(row.key == key for row in rows))
    first = next(row for row in rows if row.key == key)
    rows.remove(first)
    rows.append(first)
    run.renumber("analytics.revenue")
    assert counts(run.audit()) == {"order_violations": 1}


def test_a_second_row_out_of_order_is_a_double_and_no_violation(run: Run) -> None:
    rows = run.effects["inventory.stock"]
    rows.append(rows[0]._replace(seq=9_999))
    assert counts(run.audit()) == {"double_effects": 1}


def test_a_confirmation_of_what_was_never_charged_is_found(run: Run) -> None:
    free = next(o for o in run.orders if o.charge is None)
    run.effects[CONFIRMED].append(Effect(9_999, "e", free.invoice, free.key))
    assert counts(run.audit()) == {"unexpected": 1}


@pytest.mark.parametrize("change", [{"invoice": "999999"}, {"key": "another"}])
def test_a_stranger_is_found(run: Run, change: dict[str, str]) -> None:
    row = run.effects["inventory.stock"][5]
    run.effects["inventory.stock"][5] = row._replace(**change)
    assert run.audit().unexpected == 1


def _drop(run: Run) -> None:
    del run.charges[4]


def _double(run: Run) -> None:
    run.charges.append(run.charges[4])


def _another_amount(run: Run) -> None:
    run.charges[4] = run.charges[4]._replace(amount=run.charges[4].amount + Decimal("0.01"))


def _stranger(run: Run) -> None:
    run.charges.append(Charge("charge-unknown", Decimal(1)))


@pytest.mark.parametrize(
    ("plant", "found"),
    [(_drop, "lost"), (_double, "double_effects"), (_another_amount, "wrong_sums"), (_stranger, "unexpected")],
)
def test_a_wrong_charge_is_found(run: Run, plant: Callable[[Run], None], found: str) -> None:
    plant(run)
    assert counts(run.audit()) == {found: 1}


@pytest.mark.parametrize("by", [Sums(1, Decimal(0)), Sums(0, Decimal("0.001")), Sums(-1, Decimal("-0.01"))])
def test_a_wrong_sum_is_found(run: Run, by: Sums) -> None:
    product, held = next(iter(run.sums.items()))
    run.sums[product] = Sums(held.units + by.units, held.revenue + by.revenue)
    assert counts(run.audit()) == {"wrong_sums": 1}


def test_missing_and_invented_products_are_found(run: Run) -> None:
    run.sums.pop("PADS")
    run.sums["pads"] = Sums(0, Decimal(0))
    assert counts(run.audit()) == {"wrong_sums": 2}


def test_examples_are_bounded_and_counts_are_not(run: Run) -> None:
    for rows in run.effects.values():
        rows.clear()
    findings = run.audit()
    assert findings.lost == 3 * 200 + len(run.charges)
    assert len(findings.examples) == 20


def test_the_export_is_sorted_by_code_point_and_exact(tmp_path: Path) -> None:
    sums = {
        "b": Sums(1, Decimal("5.625")), "B": Sums(-2, Decimal("-0.1")), "é": Sums(0, Decimal(0)),
        'a,"x"': Sums(3, Decimal("1E+2")), "10": Sums(2**40, Decimal("0.30")), "9": Sums(1, Decimal("1.10")),
    }
    path = tmp_path / "sums.csv"
    write_export(path, sums)
    assert path.read_text(encoding="utf-8") == (
        'product,units,revenue\n10,1099511627776,0.30\n9,1,1.10\nB,-2,-0.10\n"a,""x""",3,100.00\nb,1,5.625\né,0,0.00\n'
    )
    assert read_export(path) == sums
    assert list(tmp_path.iterdir()) == [path]


def test_an_export_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    write_export(path, {"a": Sums(1, Decimal(1))})
    with pytest.raises(UnicodeEncodeError):
        write_export(path, {"\ud800": Sums(1, Decimal(1))})
    assert read_export(path) == {"a": Sums(1, Decimal(1))}
    assert list(tmp_path.iterdir()) == [path]


def test_another_file_is_no_export(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="first line"):
        read_export(path)
