"""The conftest.py of the user's project, beside test_inventory.py: its own fixtures."""

from collections.abc import Iterator

import pytest
from events import OrderCreated
from models import Base
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from bothends import Context, Service


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        yield session
    engine.dispose()


@pytest.fixture
def shop() -> Service:
    """The lesson shop: warehouse, mail, ledger."""
    shop = Service("shop")
    for name in ("warehouse", "mail", "ledger"):
        consumer = shop.consumer(name)

        @consumer.handle(OrderCreated)
        def accept(order: OrderCreated, ctx: Context) -> None:
            pass

    return shop
