"""What is made anew on a retry and used as identity: ids, times, random numbers."""

import random
import time
import uuid
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bothends import Context, Service
from bothends.testing.exploring.causes import Cause
from tests.exploring.planted import Plant, say, script
from tests.exploring.planted.events import ONE, TWO, Paid

DB = Context[Any]
BOOK = "insert into booked (id, order_no) values (?, ?) on conflict do nothing"


def start(db: Any) -> None:
    script(db, "create table booked (id text primary key, order_no text, at text default current_timestamp);")


def _booking(name: str, identity: Callable[[], str]) -> Callable[[bool], Service]:
    def make(wrong: bool) -> Service:
        service = Service(name)
        book = service.consumer("book", inbox=False)

        @book.handle(Paid)
        def note(paid: Paid, ctx: DB) -> None:
            say(ctx.connection, BOOK, [identity() if wrong else f"booking of {paid.order}", paid.order])

        return service

    return make


def varies_harmlessly(wrong: bool) -> Service:
    """Ids, times and dice as mere data: right, with an inbox."""
    service = Service("varies-harmlessly")
    book = service.consumer("book", inbox=not wrong)

    @book.handle(Paid)
    def note(paid: Paid, ctx: DB) -> None:
        say(
            ctx.connection, "insert into booked (id, order_no, at) values (?, ?, ?)",
            [f"{uuid.uuid4()}-{random.random()}", paid.order, datetime.now().date().isoformat()],
        )

    return service


PLANTS = (
    Plant("an id made anew", _booking("new-id", lambda: str(uuid.uuid4())), start, (ONE,), (Cause.NEW_IDENTITY,)),
    Plant("a time as identity", _booking("new-time", lambda: f"{time.time():.0f}"), start, (ONE,), (Cause.NEW_IDENTITY,)),
    Plant("a clock time as identity", _booking("new-datetime", lambda: datetime.now().strftime("%Y%m%d%H%M%S")), start,
          (ONE,), (Cause.NEW_IDENTITY,)),
    Plant("a random number as identity", _booking("new-random", lambda: str(random.randint(0, 10**9))), start, (ONE,),
          (Cause.NEW_IDENTITY,)),
    Plant("values that vary", varies_harmlessly, start, (ONE, TWO), (Cause.NEW_IDENTITY, Cause.NO_MARK)),
)
