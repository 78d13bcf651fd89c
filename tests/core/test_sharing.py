"""Partitions of a log over the members of a group: each is held once, none moves without need."""

from hypothesis import given
from hypothesis import strategies as st

from bothends.core.sharing import quota, share

members = st.lists(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8, unique=True)


@given(st.integers(0, 40), members, st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_quotas_add_up(partitions: int, names: list[str], salt: int, random: object) -> None:
    claims = {n: random.choice(names) for n in range(partitions) if n % 3}  # type: ignore[attr-defined]
    due = [quota(partitions, claims, names, name, salt) for name in names]
    assert sum(due) == partitions
    assert max(due) - min(due) <= 1


def settle(partitions: int, claims: dict[int, str], names: list[str], salt: int) -> int:
    """Everybody acts, one after the other, until nothing changes; how many times a partition was given up."""
    moves = 0
    for _ in range(partitions + 5):
        before = dict(claims)
        for name in names:
            due = share(partitions, claims, names, name, salt)
            assert not {claims[n] for n in due.give_up} - {name}
            assert not set(due.take) & set(claims)
            for number in due.give_up:
                del claims[number]
                moves += 1
            claims.update(dict.fromkeys(due.take, name))
        if claims == before:
            return moves
    raise AssertionError("the members never agree")


@given(st.integers(1, 30), st.integers(0, 10_000), st.lists(members, min_size=1, max_size=5))
def test_everything_is_held_once_whoever_comes_and_goes(partitions: int, salt: int, rounds: list[list[str]]) -> None:
    claims: dict[int, str] = {}
    for names in rounds:
        claims = {n: name for n, name in claims.items() if name in names}  # the others' leases are over
        settle(partitions, claims, names, salt)
        assert sorted(claims) == list(range(partitions))
        held = [list(claims.values()).count(name) for name in names]
        assert max(held) - min(held) <= 1
        assert not any(share(partitions, claims, names, name, salt).wanting for name in names)


@given(st.integers(1, 30), members, st.integers(0, 100))
def test_a_newcomer_moves_no_more_than_its_share(partitions: int, names: list[str], salt: int) -> None:
    claims: dict[int, str] = {}
    settle(partitions, claims, names, salt)
    moves = settle(partitions, claims, [*names, "newcomer"], salt)
    assert moves <= -(-partitions // (len(names) + 1))


def test_who_is_short_knows_it() -> None:
    due = share(4, {0: "a", 1: "a", 2: "a", 3: "a"}, ["a", "b"], "b")
    assert due == ([], [], True)
    assert share(4, {0: "a", 1: "a", 2: "a", 3: "a"}, ["a", "b"], "a").give_up == [2, 3]
    assert share(4, {0: "a", 1: "a"}, ["a", "b"], "b") == ([2, 3], [], False)
