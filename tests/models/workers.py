"""Several workers of one consumer, its operators and the world outside, as a state machine. See
``docs/adr/0011-models-of-several.md``."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from bothends import Retry
from bothends.admin import dead
from bothends.admin import keys as admin_keys
from bothends.admin.acts import Act, Refused, in_transaction
from bothends.admin.redrive import decision, redrive
from bothends.message import Record
from bothends.ports import Outgoing
from bothends.worker import Worker
from bothends.worker.isolation import Isolation
from tests.models.brokers import number_of
from tests.models.outside import TOPIC, Outside, Sent, service_of
from tests.models.several import LEASE_S, PROCESSES_MAX, SESSION_S, After, Several, adds, afters, keys
from tests.models.simulation import Dead, Process

SOURCE, GROUP = "model", "model.notes"
PARTITIONS = 3
EVENTS_MAX = 20
ATTEMPTS = 3
ACT = Act("model")


class Workers(Several):
    @initialize(
        seed=st.integers(0, 2**16), then=st.sampled_from(["hold", "pass"]), mode=st.sampled_from(["park", "park", "block"]),
        batch=st.sampled_from([1, 3, 100]), slots=st.sampled_from([1, 2]), workers=st.integers(1, PROCESSES_MAX),
        if_unknown=st.sampled_from(["", "", "find", "repeat", "hold"]), events=adds,
    )
    def begin(
        self, seed: int, then: Any, mode: Any, batch: int, slots: int, workers: int, if_unknown: str, events: Any
    ) -> None:
        self.open(seed, (TOPIC,), PARTITIONS)
        self.outside = Outside(self)
        self.retry = Retry(ATTEMPTS, first_s=0.5, mode=mode, then=then, crashes=None)
        self.effects, self.if_unknown = bool(if_unknown), if_unknown
        self.service = service_of(
            self.outside, effects=self.effects, if_unknown=if_unknown, retry=self.retry, batch_max=batch, concurrency=slots)
        self.consumer = self.service.consumers["notes"]
        self.sent: dict[int, Sent] = {}
        self.wrongs: list[str] = []
        self.done: dict[int, int] = {}
        self.seen = 0
        self.conflicts: set[int] = set()
        self.acts = 0
        for _ in range(workers):
            self.start()
        self.add_all(events)

    def start_one(self) -> Process:
        def main(process: Process) -> None:
            def leave(code: int) -> None:
                process.gone = True
                raise Dead

            worker = Worker(
                self.consumer, self.store, self.broker, member=process.name, lease_s=LEASE_S, isolation=Isolation(), exit=leave)
            worker.run(process.stopping, process.stopping.__class__())

        return self.simulation.start("worker", main)

    def wrong(self, condition: bool, text: str) -> None:
        if condition:
            self.wrongs.append(text)

    def forward(self, seconds: float) -> None:
        """A broker takes those for dead who are silent for a while."""
        super().forward(seconds)
        if seconds > SESSION_S:
            self.expel()

    def expel(self) -> None:
        for name, process in self.simulation.processes.items():
            if process.over or name in self.frozen:
                self.log.expel(GROUP, name)

    # What comes in

    def add_all(self, events: list[tuple[str, int]]) -> None:
        for key, fails in events:
            if len(self.sent) < EVENTS_MAX:
                self.send(key, (0, 0, 0, 0, 1, 1, 2, 2 * ATTEMPTS)[fails % 8], fails == 9)

    @rule(key=keys, fails=st.integers(0, 2 * ATTEMPTS), doomed=st.booleans())
    @precondition(lambda self: len(self.sent) < EVENTS_MAX)
    def send(self, key: str, fails: int, doomed: bool) -> None:
        number = len(self.sent) + 1
        place = sum(sent.key == key for sent in self.sent.values())
        self.sent[number] = Sent(number, key, place, fails, doomed)
        self._publish(number, "first")

    def _publish(self, number: int, note: str) -> None:
        key = self.sent[number].key
        body = json.dumps({"key": key, "number": number, "note": note}).encode()
        headers = {"ce_specversion": "1.0", "ce_id": f"e{number}", "ce_source": SOURCE, "ce_type": "model.noted",
                   "ce_dataversion": "1", "ce_time": "2030-01-01T00:00:00Z", "content-type": "application/json"}
        self.log.append([Outgoing(TOPIC, key.encode(), body, [(n, v.encode()) for n, v in headers.items()])], 0.0)

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 99), other=st.sampled_from([False, False, True]), after=afters)
    def copy(self, which: int, other: bool, after: After) -> None:
        """Another copy of an event, or another fact under its id."""
        number = which % len(self.sent) + 1
        if other and number not in self.conflicts:
            self.conflicts.add(number)
            self._publish(number, "another")
        elif not other:
            self._publish(number, "first")
        self.after(after)

    @precondition(lambda self: self.effects)
    @rule(answer=st.sampled_from(["yes", "not sent", "lost before", "lost after"]), after=afters)
    def the_bank_answers(self, answer: str, after: After) -> None:
        self.outside.answer = answer
        self.after(after)

    @rule(after=afters)
    def silent_members_are_expelled(self, after: After) -> None:
        self.expel()
        self.disturbances += 1
        self.after(after)

    @rule(marked=st.booleans(), points=st.integers(0, 20), again=st.booleans(), after=afters, then=afters)
    def a_drainer_is_late(self, marked: bool, points: int, again: bool, after: After, then: After) -> None:
        """Frozen with a key leased, often just before it runs the key's head, until others have drained it, and perhaps have
        parked more of it."""
        found = self._drainer()
        if found is None:
            return
        key, process = found
        for _ in range(60 if marked else points):
            process.step(1)
            if marked and self.ground.rows("select 1 from bothends_runs where worker = :name", name=process.name):
                break
        if process.over or process.writes:
            return
        self.frozen.add(process.name)
        self.forward(LEASE_S + 1.0)
        self.disturbances += 1
        self.after(replace(after, seconds=0.0, rounds=after.rounds + 20))
        if again and len(self.sent) < EVENTS_MAX:
            self.send(key, 2, False)
            self.after(After([], 0.0, 20, 8))
            self.forward(0.7)
        self.after(replace(then, seconds=0.0))
        self.frozen.discard(process.name)
        process.step(60)

    @precondition(lambda self: self.effects)
    @rule(dies=st.booleans(), after=afters)
    def a_worker_is_cut_off_in_a_call(self, dies: bool, after: After) -> None:
        for _ in range(60):
            for process in self.moving:
                process.step(2)
                if self.outside.calling == process.name and not process.over:
                    self.outside.calling = ""
                    self.disturbances += 1
                    process.kill() if dies else self.frozen.add(process.name)
                    self.forward(SESSION_S + LEASE_S)
                    self.after(replace(after, rounds=after.rounds + 10))
                    return

    def _drainer(self) -> tuple[str, Process] | None:
        """A key that is leased, and who has it; things go on until there is one."""
        for _ in range(60):
            for key, name in self.ground.rows(
                    "select key, drainer from bothends_blocked_keys where keyed and lease_until is not null order by key"):
                if (process := self.simulation.processes[name]) in self.moving:
                    return bytes(key).decode(), process
            for process in self.moving:
                process.step(4)
        return None

    # Operators

    def _letters(self) -> list[tuple[int, int, str]]:
        """(id, event, reason) of open ones that are no conflicts."""
        rows = self.ground.rows(
            "select id, message_id, reason from bothends_dead_letters where state = 'open' and reason <> 'conflict' "
            "order by id")
        return [(id, int(name[1:]), reason) for id, name, reason in rows]

    def _act(self, steps: Any) -> Any:
        """One act of an operator, who leaves an audit row wherever anything was done."""
        before = self._audited()
        answer = in_transaction(self.ground.own, lambda: steps(self.ground.store.admin))
        nothing = answer is False or answer in ("already_waiting", "already_done") or "nothing was skipped" in str(answer)
        assert self._audited() > before or nothing, f"no audit row: {answer}"
        return answer

    def _audited(self) -> int:
        return int(self.ground.rows("select count(*) from bothends_audit")[0][0])

    def _redrive(self, letter: int, number: int) -> None:
        sent = self.sent[number]
        try:
            answer = self._act(lambda admin: redrive(admin, letter, ACT))
        except Refused:
            made = {"charge": decision("charge=repeat")}
            sent.calls_max += 1
            answer = self._act(lambda admin: redrive(admin, letter, ACT, decisions=made))
        if answer == "redriven":
            sent.failed, sent.discarded = 0, False

    @precondition(lambda self: self.nobody_writes)
    @rule(which=st.integers(0, 9), heal=st.booleans(), verb=st.sampled_from(["redrive", "redrive", "edit", "discard"]),
          after=afters)
    def dead_letter(self, which: int, heal: bool, verb: str, after: After) -> None:
        found = self._letters()
        if not found:
            return
        letter, number, _ = found[which % len(found)]
        sent = self.sent[number]
        if heal:
            sent.doomed, sent.fails = False, 0
        if verb == "redrive":
            self._redrive(letter, number)
        elif verb == "discard":
            sent.exempt = sent.discarded = True
            self._act(lambda admin: dead.discard(admin, letter, ACT))
        else:
            sent.note = f"edited {which}"
            body = json.dumps({"key": sent.key, "number": number, "note": sent.note}).encode()
            self._act(lambda admin: dead.edit(admin, letter, body, ACT))
        self.after(after)

    @precondition(lambda self: self.nobody_writes)
    @rule(which=st.integers(0, 9), verb=st.sampled_from(["retry", "skip"]), after=afters)
    def waiting_key(self, which: int, verb: str, after: After) -> None:
        found = self.ground.rows("select key, state from bothends_blocked_keys where keyed order by key")
        if not found:
            return
        key, state = found[which % len(found)]
        holding = {number for _, number, reason in self._letters()
                   if reason != "skipped" and self.sent[number].key == bytes(key).decode()}
        head = self.ground.rows("select id, attempts from bothends_parked where key = :key order by position limit 1", key=key)
        if verb == "skip":
            for number in holding if state == "held" and holding else [int(id[1:]) for id, _ in head]:
                self.sent[number].exempt = True
            self._act(lambda admin: admin_keys.skip(admin, GROUP, bytes(key), ACT))
        elif state == "held" and holding and any(reason == "outcome_unknown" for _, _, reason in self._letters()):
            return  # says what happened first: that is ``dead_letter``
        else:
            for number in sorted(holding)[:1] if state == "held" else []:
                self.sent[number].failed = 0
            self._act(lambda admin: admin_keys.retry(admin, GROUP, bytes(key), ACT))
        self.after(after)

    # Promises

    def check(self) -> None:
        assert not self.wrongs, self.wrongs[0]
        for id, number, note, receipt in self.ground.rows(
                "select seq, number, note, receipt from model_effects where seq > :seen order by seq", seen=self.seen):
            self.seen = id
            self._check_effect(self.sent[number], note, receipt)
        self._check_positions()
        for sent in self.sent.values():
            assert len(sent.keys) <= 1, f"{sent} was charged under several keys"
            most = sent.calls_max if self.if_unknown == "hold" else 1 + self.disturbances
            assert sent.calls <= most, f"{sent} was called {sent.calls} times"

    def _check_effect(self, sent: Sent, note: str, receipt: str) -> None:
        assert sent.number not in self.done, f"{sent} took effect twice"
        self.done[sent.number] = len(self.done)
        assert note == sent.note, f"{sent} took effect as {note}"
        if self.effects:
            assert receipt == self.outside.bank[next(iter(sent.keys))], f"{sent} knows {receipt}"
        self._exempt_the_passed()
        for other in self.sent.values():
            if other.key == sent.key and other.place < sent.place and not other.exempt:
                assert other.number in self.done, f"{sent} took effect before {other}"

    def _exempt_the_passed(self) -> None:
        """Where dead letters are passed over, or skipped, their keys go on without them."""
        rows = self.ground.rows("select message_id, reason from bothends_dead_letters where reason <> 'conflict'")
        for name, reason in rows:
            if self.retry.then == "pass" and reason != "outcome_unknown":
                self.sent[int(name[1:])].exempt = True

    def _check_positions(self) -> None:
        """What is acknowledged is in the inbox."""
        known = {row[0] for row in self.ground.rows("select id from bothends_inbox")}
        stored = self.log.positions(GROUP, TOPIC)
        for number, records in enumerate(self.log.all(TOPIC)):
            for record in records[:stored.get(number, 0)]:
                assert _id_of(record) in known, f"{record} is acknowledged, and is not in the inbox"

    # The end

    def heal(self) -> None:
        self.outside.answer = "yes"
        for sent in self.sent.values():
            sent.doomed, sent.fails = False, 0
        self.disturbances += 10

    def help_on(self) -> None:
        self.expel()
        for letter, number, _ in self._letters():
            self._redrive(letter, number)

    def left(self) -> str:
        missing = [sent for sent in self.sent.values() if sent.number not in self.done and not sent.discarded]
        parked = self.ground.rows("select id, attempts, reason from bothends_parked order by position")
        waiting = self.ground.rows("select key, state, next_at, drainer from bothends_blocked_keys order by key")
        conflicts = {int(row[0][1:]) for row in self.ground.rows(
            "select message_id from bothends_dead_letters where reason = 'conflict'")}
        lag = sum(lag.high - lag.position for lag in self.broker.lag(GROUP, [TOPIC]))
        open_ = self.ground.rows(
            "select 'letter', message_id, state from bothends_dead_letters where state = 'redriven' union all "
            "select 'effect', message_id, state from bothends_effects where state <> 'completed'")
        open_ = [row for row in open_ if not self.sent[int(row[1][1:])].discarded]
        if not missing and not parked and not waiting and not lag and not open_ and conflicts == self.conflicts:
            return ""
        return f"{missing}; parked {parked}; {waiting}; {lag} to come; conflicts {self.conflicts - conflicts}; {open_}"


def _id_of(record: Record) -> str:
    assert record.origin.topic == TOPIC
    return f"e{number_of(record.value)}"
