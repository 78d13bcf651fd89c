"""Which messages one call of a batch handler gets."""

from hypothesis import given
from hypothesis import strategies as st

from bothends.core.grouping import grouped


def groups(text: str) -> list[list[str]]:
    """Of items written as <handler><key>; a handler in small letters takes no batches."""
    items = text.split()
    return grouped((item, item[1:], item[0] if item[0].isupper() else None) for item in items)


def test_one_handler_gets_all_in_order() -> None:
    assert groups("A1 A1 A2 A1") == [["A1", "A1", "A2", "A1"]]


def test_without_batches_each_stands_alone() -> None:
    assert groups("a1 a1 b2") == [["a1"], ["a1"], ["b2"]]


def test_two_handlers_that_share_no_key_have_a_call_each() -> None:
    assert groups("A1 B2 A3 B4 A5") == [["A1", "A3", "A5"], ["B2", "B4"]]


def test_a_key_that_goes_from_one_handler_to_the_other_and_back_opens_a_new_call() -> None:
    assert groups("A1 B1 A1 A2") == [["A1"], ["B1"], ["A1", "A2"]]
    assert groups("A1 a1 A1") == [["A1"], ["a1"], ["A1"]]
    assert groups("A1 B2 A2 B1") == [["A1"], ["B2", "B1"], ["A2"]]


def test_nothing_is_nothing() -> None:
    assert grouped([]) == []


@given(st.lists(st.tuples(st.sampled_from("ABc"), st.sampled_from("1234"))))
def test_every_item_is_there_once_and_no_key_is_overtaken(drawn: list[tuple[str, str]]) -> None:
    items = list(enumerate(drawn))
    found = grouped((item, item[1][1], item[1][0] if item[1][0].isupper() else None) for item in items)
    flat = [item for group in found for item in group]
    assert sorted(flat) == items
    for key in "1234":
        of_key = [number for number, (_, has) in flat if has == key]
        assert of_key == sorted(of_key)
    for group in found:
        handlers = {handler for _, (handler, _) in group}
        assert len(handlers) == 1
        assert len(group) == 1 or handlers < {"A", "B"}
        assert [number for number, _ in group] == sorted(number for number, _ in group)
