"""What type checkers must refuse in batch handlers, at each line with a number. Checked by ``test_programs.py``, never run."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from bothends import BatchContext, Context, Service, event


@event("created", key="order_id")
@dataclass(frozen=True)
class Created:
    order_id: str


consumer = Service("orders").consumer("all")


@consumer.handle(Created, batch=True)
def no_list(order: Created, ctx: BatchContext[Session]) -> None: ...  # 1 (no list)


@consumer.handle(Created, batch=True)
def of_one(orders: list[Created], ctx: Context[Session]) -> None: ...  # 2 (the context of one message)


@consumer.handle(Created)
def of_many(order: Created, ctx: BatchContext[Session]) -> None: ...  # 3 (the context of many)


@consumer.handle(Created, batch=True)
def wrong_inside(orders: list[Created], ctx: BatchContext[Session]) -> None:
    ctx.emit(orders[0])  # 4 (whose event?)
    ctx.once("a", str.upper, result=str)  # 5 (no outside call)
    print(ctx.message)  # 6 (there are several)


consumer.handle(Created, effects=True, batch=True)  # 7 (not both)
