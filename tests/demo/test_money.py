from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.demo import money

AMOUNTS = st.decimals(min_value=-10**9, max_value=10**9, places=3, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("text", ["0", "2.55", "-11062.06", "0.001", "18.", ".5", "+3", "007.10"])
def test_a_price_is_what_is_written(text: str) -> None:
    assert money.parse(text) == Decimal(text)


@pytest.mark.parametrize("text", ["", "NaN", "Infinity", "1e3", "1,5", " 1", "1 ", "1_000", "--1", ".", "١", "1" * 40])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a decimal number"):
        money.parse(text)


def test_trailing_zeros_are_kept() -> None:
    assert str(money.parse("2.10")) == "2.10"


@pytest.mark.parametrize(
    ("amount", "text"),
    [("2.5", "2.50"), ("2.500", "2.50"), ("2.505", "2.505"), ("-0.00", "0.00"), ("3", "3.00"), ("-7", "-7.00"),
     ("1E+3", "1000.00"), ("0.1200", "0.12"), ("-0.001", "-0.001")],
)  # fmt: skip
def test_one_spelling_for_each_value(amount: str, text: str) -> None:
    assert money.plain(Decimal(amount)) == text


@given(AMOUNTS)
def test_the_spelling_loses_nothing(amount: Decimal) -> None:
    assert Decimal(money.plain(amount)) == amount
    assert money.plain(amount) == money.plain(amount * 1000 / 1000)


@given(st.lists(st.tuples(st.integers(-(10**6), 10**6), AMOUNTS), max_size=50))
def test_sums_are_those_of_integers(parts: list[tuple[int, Decimal]]) -> None:
    thousandths = sum(quantity * int(price.scaleb(3)) for quantity, price in parts)
    assert money.total(money.times(quantity, price) for quantity, price in parts) == Decimal(thousandths).scaleb(-3)


def test_binary_floats_would_be_wrong() -> None:
    prices = ["0.1", "0.2", "5.625", "0.001"]
    assert money.total(map(money.parse, prices * 1000)) == Decimal("5926")
    assert sum(map(float, prices * 1000)) != 5926.0


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(ArithmeticError):
        money.add(Decimal(10) ** 50, Decimal("1e-20"))
