"""Tables on a narrow terminal: what is typed again is never broken."""

import io

import pytest
from rich.console import Console

from bothends.cli.output import print_table

FINGERPRINT = "8f31c0de5b6a7712"
LIST = ("id", "consumer", "reason", "fingerprint", "key", "type", "attempts", "age", "error")
STATUS = ("consumer", "lag", "handled/s", "drained", "parked keys", "parked", "held", "dead", "oldest dead", "owner")


def drawn(columns: tuple[str, ...], row: list[str], width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, soft_wrap=False, force_terminal=True, color_system=None)
    print_table(columns, [row], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("consumer", ["store.booking", "ncpsy.warehouse.restocking-of-the-shelves"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_names_fingerprints_and_numbers_are_whole(consumer: str, width: int) -> None:
    row = ["123456", consumer, "handler_error", FINGERPRINT, "customer-17", "order.created", "5", "2 h",
           "ValueError: the product is not known to this shop and never was"]
    shown = drawn(LIST, row, width)
    for whole in ("123456", consumer, FINGERPRINT, "fingerprint", "consumer"):
        assert whole in shown
    row = [consumer, "123456", "1234.5", "drained in 3 min", "12", "10000", "7", "10000", "2 h", "team-warehouse"]
    shown = drawn(STATUS, row, width)
    for whole in (consumer, "123456", "1234.5", "10000"):
        assert whole in shown


@pytest.mark.parametrize("width", [80, 100])
def test_what_fits_stays_within_the_terminal(width: int) -> None:
    row = ["1", "store.booking", "handler_error", FINGERPRINT, "k1", "order.created", "5", "2 h", "no such product " * 5]
    shown = drawn(LIST, row, width)
    assert max(map(len, shown.splitlines())) <= width
    status = ["store.booking", "12", "1234.5", "drained in 3 min", "12", "100", "7", "10", "2 h", "team-warehouse"]
    assert max(map(len, drawn(STATUS, status, width).splitlines())) <= width
    assert " ".join(shown.split()).count("product") == 5


def test_a_cell_is_text_and_not_markup() -> None:
    assert "[bold]x" in drawn(("error",), ["[bold]x"])
