"""A model of a relay that goes to and fro between the table and the log, over histories that hypothesis makes up.

The database is simulated, with the trap that it really has: a transaction is in the log, and decoded, before others can see
it. What decides is the product's own: ``advance``, ``Snapshot.includes``, ``covers``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bothends.core.relaying import EVERY_LANE, Cursor, Stream, advance
from bothends.core.snapshots import Snapshot, covers

SEQ = 1
LIMIT = 2
"""Rows of a page: small, so that pages are full."""


class Transaction(NamedTuple):
    xid: int
    seqs: list[int]


class Machine(RuleBasedStateMachine):
    """``log`` has transactions in the order of their commits; a position is a number of them. ``visible`` has the xids that
    others see; the rest run, or have committed and cannot be seen yet."""

    @initialize()
    def begin(self) -> None:
        self.xid, self.seq = 10, 0
        self.open: list[Transaction] = []
        self.log: list[Transaction] = []
        self.hidden: list[int] = []
        self.visible: set[int] = set()
        self.done: list[int] = []
        """Everything that was handed out, in order."""
        self.stored = Cursor(0, self.snapshot())
        self.position: int | None = None
        self.slot: int | None = None
        """What the server would send from."""
        self.poll_anew()

    # The database

    def snapshot(self) -> str:
        running = [t.xid for t in self.open] + self.hidden
        return f"{min(running, default=self.xid + 1)}:{self.xid + 1}:{','.join(map(str, sorted(running)))}"

    @rule(rows=st.integers(1, 3))
    def write(self, rows: int) -> None:
        self.xid += 1
        self.open.append(Transaction(self.xid, [self.seq + n for n in range(1, rows + 1)]))
        self.seq += rows

    @rule(rows=st.integers(1, 3), seen=st.booleans())
    def write_and_commit(self, rows: int, seen: bool) -> None:
        self.write(rows)
        transaction = self.open.pop()
        self.log.append(transaction)
        (self.visible.add if seen else self.hidden.append)(transaction.xid)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        """One more row of a transaction that is open: above what others have added since."""
        self.seq += 1
        data.draw(st.sampled_from(self.open)).seqs.append(self.seq)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), seen=st.booleans())
    def commit(self, data: st.DataObject, seen: bool) -> None:
        transaction = data.draw(st.sampled_from(self.open))
        self.open.remove(transaction)
        self.log.append(transaction)
        (self.visible.add if seen else self.hidden.append)(transaction.xid)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def roll_back(self, data: st.DataObject) -> None:
        self.open.remove(data.draw(st.sampled_from(self.open)))

    @precondition(lambda self: self.hidden)
    @rule(data=st.data())
    def come_to_light(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(self.hidden))
        self.hidden.remove(xid)
        self.visible.add(xid)

    def rows(self) -> list[tuple[int, int]]:
        """(seq, xid) of what can be seen."""
        return sorted((seq, t.xid) for t in self.log if t.xid in self.visible for seq in t.seqs)

    # The relay

    def poll_anew(self) -> None:
        self.stream = Stream(EVERY_LANE, *self.stored)
        self.caught_up, self.reading, self.seam = False, False, None
        self.at = 0
        self.markers: list[tuple[int, Cursor]] = []

    @precondition(lambda self: not self.reading)
    @rule()
    def poll(self) -> None:
        now, stream = self.snapshot(), self.stream
        before, target = Snapshot.parse(stream.snapshot), Snapshot.parse(stream.target or now)
        late = [(0, seq) for seq, xid in self.rows()
                if seq <= stream.hwm and seq > stream.after and not before.sees(xid) and target.sees(xid)]
        new = [(0, seq) for seq, xid in self.rows() if seq > stream.hwm and target.sees(xid)]
        late_full, new_full = len(late) >= LIMIT, len(new) >= LIMIT
        late, new = late[:LIMIT], new[:LIMIT]
        self.stream, with_new = advance(
            stream, late, new, late_full=late_full, new_full=new_full, now=now, last=self.seq, seq=SEQ)
        self.caught_up = not late_full and not new_full
        self.done += [row[SEQ] for row in late + (new if with_new else [])]
        if self.stream.target is None:
            self.stored = Cursor(self.stream.hwm, self.stream.snapshot)

    @precondition(lambda self: not self.reading and self.slot is None)
    @rule()
    def make_slot(self) -> None:
        """Its snapshot is the log's: what has committed by now is seen by it, visible or not."""
        self.slot, self.position = len(self.log), None
        running = [t.xid for t in self.open]
        self.seam = Snapshot.parse(
            f"{min(running, default=self.xid + 1)}:{self.xid + 1}:{','.join(map(str, sorted(running)))}")

    @precondition(lambda self: not self.reading and self.slot is not None)
    @rule()
    def read(self) -> None:
        """Begins to read, if that may be: at a slot that goes on, or where polling has passed the seam."""
        if self.seam is not None:
            if not self.may_read(self.seam):
                return
            self.position, self.seam = self.slot, None
        if self.position is None:
            self.slot = None  # nobody knows what was done when it was made
            return
        self.reading, self.at = True, self.position
        self.covers: Any = covers([self.stream])
        self.mark()

    def may_read(self, seam: Snapshot) -> bool:
        here = self.stream.target is None and Snapshot.parse(self.stream.snapshot).includes(seam)
        return self.caught_up and here

    def mark(self) -> None:
        """The statement's snapshot is older than its message."""
        self.markers.append((len(self.log), Cursor(self.seq, self.snapshot())))

    @precondition(lambda self: self.reading)
    @rule()
    def send_marker(self) -> None:
        self.mark()

    @precondition(lambda self: self.reading)
    @rule(transactions=st.integers(0, 3), stores=st.booleans())
    def take(self, transactions: int, stores: bool) -> None:
        self.pass_markers(stores)
        for transaction in self.log[self.at:self.at + transactions]:
            self.done += [seq for seq in transaction.seqs
                          if self.covers is None or not self.covers(seq, transaction.xid, None)]
            self.at += 1
            self.pass_markers(stores)
        if stores:
            self.position = self.slot = self.at

    def pass_markers(self, stores: bool) -> None:
        while self.markers and self.markers[0][0] <= self.at:
            cursor, self.covers = self.markers.pop(0)[1], None
            self.stored = cursor if stores else self.stored

    @rule(drops=st.booleans())
    def crash(self, drops: bool) -> None:
        """Of the relay: what is in memory is gone. With it, or later, the slot may go."""
        self.crash_slot(drops)
        self.poll_anew()

    def crash_slot(self, drops: bool) -> None:
        if self.seam is not None or drops:
            self.slot = None  # one whose seam nobody has passed is made anew

    @precondition(lambda self: self.reading)
    @rule()
    def fall_back(self) -> None:
        self.poll_anew()

    @invariant()
    def nothing_is_lost(self) -> None:
        """Whatever is done next, what has committed was handed out or will be: seen here by running it to its end."""
        if not hasattr(self, "done"):
            return
        done = set(self.done)
        snapshot = Snapshot.parse(self.stored.snapshot)
        for place, transaction in enumerate(self.log):
            for seq in transaction.seqs:
                if seq in done:
                    continue
                polled = not (seq <= self.stored.hwm and snapshot.sees(transaction.xid))
                assert polled, f"polling would not find {seq}"
                if self.reading:
                    assert place >= self.at, f"reading has passed {seq}"
                    assert not (self.covers is not None and self.covers(seq, transaction.xid, None))

    def teardown(self) -> None:
        if hasattr(self, "done"):
            firsts = list(dict.fromkeys(self.done))
            assert set(firsts) <= {seq for t in self.log for seq in t.seqs}


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLogModel = Machine.TestCase


class TrustsLaterSnapshots(Machine):
    """A slot was made, the table was polled after that: so all is well?"""

    def may_read(self, seam: Snapshot) -> bool:
        return self.caught_up and self.stream.target is None and Snapshot.parse(self.stream.snapshot).xmax >= seam.xmax


class TrustsFullPages(Machine):
    def may_read(self, seam: Snapshot) -> bool:
        return self.stream.target is None and Snapshot.parse(self.stream.snapshot).includes(seam)


class StoresTooEarly(Machine):
    """A marker's cursor is stored before the stream has passed the marker."""

    def mark(self) -> None:
        self.markers.append((0, Cursor(self.seq, self.snapshot())))


class KeepsWhatNobodyKnows(Machine):
    """A slot that was made, and whose seam nobody has passed, is read after a crash."""

    def crash_slot(self, drops: bool) -> None:
        if drops:
            self.slot = None
        self.position = self.slot


def _hidden_commit(m: Machine) -> None:
    """A commit is in the log and cannot be seen yet, when a slot is made and the table is polled after that."""
    m.write_and_commit(1, seen=False)
    m.make_slot()
    m.poll()
    m.read()


def _full_page(m: Machine) -> None:
    m.write_and_commit(LIMIT + 1, seen=True)
    m.make_slot()
    m.poll()
    m.read()


def _early_marker(m: Machine) -> None:
    m.make_slot()
    m.poll()
    m.read()
    m.write_and_commit(1, seen=True)
    m.send_marker()
    m.take(0, stores=True)


def _slot_of_nobody(m: Machine) -> None:
    m.write_and_commit(1, seen=True)
    m.make_slot()
    m.crash(drops=False)
    m.read()


HISTORIES = {
    TrustsLaterSnapshots: _hidden_commit, TrustsFullPages: _full_page, StoresTooEarly: _early_marker,
    KeepsWhatNobodyKnows: _slot_of_nobody,
}


@pytest.mark.parametrize("mutant", HISTORIES)
def test_a_model_that_knows_less_loses(mutant: type[Machine]) -> None:
    """What each rule is for: without it the same history loses an event; with it, none."""
    for machine in (mutant(), Machine()):
        machine.begin()
        HISTORIES[mutant](machine)
        if isinstance(machine, mutant):
            with pytest.raises(AssertionError, match=r"polling would not find|reading has passed"):
                machine.nothing_is_lost()
        else:
            machine.nothing_is_lost()
