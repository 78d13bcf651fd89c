"""What handlers of the worker model meet: scripts of failures, and a bank that knows its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bothends import NOT_DONE, Context, NotDone, NotSent, Permanent, Service, Transient, event
from tests.models.simulation import here

if TYPE_CHECKING:
    from tests.models.workers import Workers

__all__ = ["TOPIC", "Noted", "Outside", "Sent", "service_of"]

TOPIC = "model.notes"


@event("model.noted", key="key", topic=TOPIC)
@dataclass(frozen=True)
class Noted:
    key: str
    number: int
    note: str = "first"


@dataclass
class Sent:
    """One event, and what may be known of it."""

    number: int
    key: str
    place: int
    """Among those of its key."""
    fails: int = 0
    """Runs that will fail yet."""
    doomed: bool = False
    failed: int = 0
    """Runs that have failed since it was last redriven."""
    note: str = "first"
    exempt: bool = False
    """Its key went on without it: by the policy, or by an operator."""
    discarded: bool = False
    calls: int = 0
    calls_max: int = 1
    """Where nobody may guess (``if_unknown="hold"``)."""
    keys: set[str] = field(default_factory=set)


class Outside:
    """The world that handlers meet: who fails how often, and a bank that knows its keys."""

    def __init__(self, model: Workers) -> None:
        self.model = model
        self.bank: dict[str, str] = {}
        self.answer = "yes"
        self.calling = ""
        """The process that waits for the bank."""

    def fail_as_told(self, number: int, attempt: int) -> None:
        sent = self.model.sent[number]
        self.model.simulation.point()
        self.model.wrong(attempt > sent.failed + 1, f"{sent} was charged for what others did: attempt {attempt}")
        if sent.doomed or sent.fails:
            sent.fails = max(0, sent.fails - 1)
            sent.failed += 1
            raise Permanent("never") if sent.doomed else Transient("not yet")

    def charge(self, number: int, key: str) -> str:
        sent, answer = self.model.sent[number], self.answer
        self.model.simulation.point()
        sent.calls += 1
        sent.keys.add(key)
        self.model.disturbances += answer != "yes"
        if answer == "not sent":
            sent.failed, sent.calls_max = sent.failed + 1, sent.calls_max + 1
            raise NotSent("the line is dead")
        if answer != "lost before":
            self.bank.setdefault(key, f"receipt {len(self.bank) + 1} for {number}")
        self.calling = here().process.name
        self.model.simulation.point()
        self.calling = ""
        if answer != "yes":
            sent.failed += 1
            raise TimeoutError("no answer")
        return self.bank[key]

    def find(self, number: int, key: str) -> str | NotDone:
        self.model.simulation.point()
        return self.bank.get(key, NOT_DONE)


def service_of(outside: Outside, *, effects: bool, if_unknown: Any, **options: Any) -> Service:
    service = Service("model")
    consumer = service.consumer("notes", owner="model", timeout_s=3600, **options)

    def write(ctx: Context[Any], db: Any, noted: Noted, receipt: str) -> None:
        db.execute("insert into model_effects (number, note, receipt) values (?, ?, ?)", [noted.number, noted.note, receipt])
        outside.model.simulation.point()

    @consumer.handle(Noted, effects=effects)
    def handle(noted: Noted, ctx: Context[Any]) -> None:
        outside.fail_as_told(noted.number, ctx.attempt)
        if not effects:
            write(ctx, ctx.connection, noted, "")
            return

        def find(key: str) -> str | NotDone:
            return outside.find(noted.number, key)

        receipt = ctx.once("charge", lambda key: outside.charge(noted.number, key), result=str,
                           if_unknown=find if if_unknown == "find" else if_unknown)
        write(ctx, ctx.begin(), noted, receipt)

    return service
