"""The conftest.py of the user's project, beside test_inventory.py: its own fixtures."""

from collections.abc import AsyncIterator, Iterator

import pytest
from events import OrderCreated
from models import Base
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
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
async def async_session() -> AsyncIterator[AsyncSession]:
    engine = create_async_engine("sqlite+aiosqlite://")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session:
        yield session
    await engine.dispose()


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
