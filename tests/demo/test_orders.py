import csv
import gzip
import io
from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.demo.audit import Sums, plain_sums
from bothends.demo.orders import COLUMNS, LINES_MAX, InvalidOrders, Line, read_orders
from bothends.demo.seeded import make_orders

HEADER = ",".join(COLUMNS)


def write(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def line(invoice: str, product: str = "P", quantity: object = 1, price: object = "1.00", customer: str = "7.0") -> str:
    out = io.StringIO()
    at, description = "2010-12-01 08:26:00", 'BAG, "RED"\nBIG'
    csv.writer(out).writerow([invoice, product, description, quantity, at, price, customer, "UK"])
    return out.getvalue().rstrip("\r\n")


def test_one_order_per_invoice_at_the_place_of_its_first_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", line("1", "A"), line("2", "B"), line("1", "C"), line("3"), line("2", "D"))
    orders = read_orders([path])
    assert [(o.position, o.invoice, [part.product for part in o.lines]) for o in orders] == [
        (0, "1", ["A", "C"]), (1, "2", ["B", "D"]), (2, "3", ["P"]),
    ]  # fmt: skip


def test_an_invoice_goes_on_in_the_next_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", line("1", "A"))
    second = write(tmp_path / "b.csv", line("2", "B"), line("1", "C"))
    assert [part.product for part in read_orders([first, second])[0].lines] == ["A", "C"]
    assert [o.invoice for o in read_orders([second, first])] == ["2", "1"]


def test_gzip_is_known_by_its_bytes_and_columns_by_their_names(tmp_path: Path) -> None:
    plain = write(tmp_path / "a.csv", line("1", "A", 6, "2.55"))
    packed = tmp_path / "b.csv"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    other = tmp_path / "c.csv"
    other.write_text("\ufeffCountry,More,CustomerID,UnitPrice,InvoiceDate,Quantity,Description,StockCode,InvoiceNo\n"
                     "UK,x,7.0,2.55,2010-12-01 08:26:00,6,d,A,1\n", encoding="utf-8")  # fmt: skip
    for path in (plain, packed, other):
        (order,) = read_orders([path])
        assert order.lines == [Line("A", 6, Decimal("2.55"))]
        assert (order.key, order.country, order.at) == ("7.0", "UK", "2010-12-01 08:26:00")


def test_the_key_is_the_customer_as_written_else_the_invoice(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", line("1", customer="17850.0"), line("2", customer=""), line("1", customer="9.0"))
    first, second = read_orders([path])
    assert (first.key, first.customer) == ("17850.0", "17850.0")
    assert (second.key, second.customer) == ("2", None)


@pytest.mark.parametrize(
    ("invoice", "quantity", "price", "cancelled", "charge"),
    [
        ("536365", 2, "2.55", False, ("charge-536365", Decimal("5.10"))),
        ("536365", 2, "0.0", False, None),
        ("536365", -2, "2.55", False, None),
        ("A563185", 1, "11062.06", False, ("charge-A563185", Decimal("11062.06"))),
        ("A563186", 1, "-11062.06", False, None),
        ("C536379", -1, "27.50", True, ("refund-C536379", Decimal("27.50"))),
        ("C536379", -1, "0", True, None),
        ("C536379", 1, "27.50", True, None),
    ],
)
def test_what_is_charged(
    tmp_path: Path, invoice: str, quantity: int, price: str, cancelled: bool, charge: object
) -> None:
    (order,) = read_orders([write(tmp_path / "a.csv", line(invoice, "P", quantity, price))])
    assert order.cancelled is cancelled
    assert order.charge == charge


def test_product_codes_differ_by_case(tmp_path: Path) -> None:
    sums = plain_sums(read_orders([write(tmp_path / "a.csv", line("1", "15056BL"), line("1", "15056bl", 3))]))
    assert sums == {"15056BL": Sums(1, Decimal(1)), "15056bl": Sums(3, Decimal(3))}


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([line("1"), line("1", quantity="1.5")], r"a\.csv:5: Quantity must be a whole number"),
        ([line("1", quantity="")], "Quantity"),
        ([line("1", quantity="²")], "Quantity"),
        ([line("1", quantity=2**53)], "below 2"),
        ([line("1", price="nan")], "not a decimal"),
        ([line("1", price="")], "not a decimal"),
        ([line("")], "InvoiceNo is empty"),
        ([line("1" * 201)], "InvoiceNo has more than 200"),
        ([line("1", product="x" * 201)], "StockCode has more than 200"),
        (["1,2,3"], "3 cells where the header has 8"),
        (['1,"2'], "not a CSV file"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, rows: list[str], where: str) -> None:
    with pytest.raises(InvalidOrders, match=where):
        read_orders([write(tmp_path / "a.csv", *rows)])


def test_bad_files_are_named(tmp_path: Path) -> None:
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(write(tmp_path / "a.csv", *[line(str(n)) for n in range(500)]).read_bytes())[:200])
    latin = tmp_path / "latin.csv"
    latin.write_bytes(HEADER.encode() + b"\n1,2,\xa3,1,x,1,1,UK\n")
    empty = tmp_path / "empty.csv"
    empty.touch()
    columns = write(tmp_path / "columns.csv", header=HEADER.replace("StockCode", "SKU"))
    for path in (cut, latin, empty, columns, tmp_path / "missing.csv", tmp_path):
        with pytest.raises(InvalidOrders, match=path.name):
            read_orders([path])


def test_blank_lines_are_nothing_and_lines_are_bounded(tmp_path: Path) -> None:
    assert len(read_orders([write(tmp_path / "a.csv", line("1"), "", line("2"), "")])) == 2
    with pytest.raises(InvalidOrders, match="more than 10000 lines"):
        read_orders([write(tmp_path / "b.csv", *["1,P,d,1,x,1,7,UK"] * (LINES_MAX + 1))])


ROW = st.tuples(st.integers(0, 5), st.sampled_from("aAbB"), st.integers(-99, 99), st.integers(-999, 99999))


@given(st.lists(ROW, max_size=60))
def test_grouping_loses_no_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("orders") / "a.csv"
    write(path, *[line(str(i), p, q, Decimal(c).scaleb(-3)) for i, p, q, c in rows])
    orders = read_orders([path])
    assert [o.invoice for o in orders] == list(dict.fromkeys(str(row[0]) for row in rows))
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for _, product, quantity, thousandths in rows:
        expected[product][0] += quantity
        expected[product][1] += quantity * thousandths
    held = {product: [sums.units, int(sums.revenue * 1000)] for product, sums in plain_sums(orders).items()}
    assert held == dict(expected)


@pytest.mark.orders
def test_nine_real_months_against_a_plain_sum(orders_files: list[Path]) -> None:
    """The plain sum is made here in another way: integers of a thousandth, straight from the lines."""
    units: dict[str, int] = defaultdict(int)
    thousandths: dict[str, int] = defaultdict(int)
    invoices: dict[str, None] = {}
    lines = 0
    for path in orders_files:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                lines += 1
                invoices[row["InvoiceNo"]] = None
                whole, _, part = row["UnitPrice"].partition(".")
                price = int(whole + part.ljust(3, "0"))
                units[row["StockCode"]] += int(row["Quantity"])
                thousandths[row["StockCode"]] += int(row["Quantity"]) * price
    orders = read_orders(orders_files)
    assert (lines, sum(len(order.lines) for order in orders)) == (320_705, 320_705)
    assert [order.invoice for order in orders] == list(invoices)
    assert (len(orders), sum(order.cancelled for order in orders)) == (16_459, 2_554)
    assert max(len(order.lines) for order in orders) == 705
    sums = plain_sums(orders)
    assert {product: s.units for product, s in sums.items()} == units
    assert {product: int(s.revenue * 1000) for product, s in sums.items()} == thousandths


def test_seeded_orders_are_awkward_and_always_the_same() -> None:
    orders = make_orders(1, 3000)
    assert orders == make_orders(1, 3000) != make_orders(2, 3000)
    assert [order.position for order in orders] == list(range(3000))
    assert len({order.invoice for order in orders}) == 3000
    lines = [part for order in orders for part in order.lines]
    products = {part.product for part in lines}
    assert any(p.swapcase() in products for p in products if p.swapcase() != p)
    assert any(part.price == 0 for part in lines)
    assert any(part.price < 0 for part in lines)
    assert any((part.price * 1000) % 10 for part in lines)
    assert any(part.quantity < 0 for order in orders if not order.cancelled for part in order.lines)
    assert 0.1 < sum(order.cancelled for order in orders) / 3000 < 0.2
    assert any(order.customer is None for order in orders)
    assert any(order.charge is None for order in orders)
    assert max(len(order.lines) for order in orders) > 100


@pytest.mark.parametrize("count", [0, -1, 10_000_001])
def test_the_number_of_seeded_orders_is_bounded(count: int) -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        make_orders(1, count)
