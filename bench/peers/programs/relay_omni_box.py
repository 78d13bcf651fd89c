"""A service's relay with omni-box."""

import asyncio
import json
import logging
import sys

import structlog
from aiokafka import AIOKafkaProducer
from omni_box import OutboxPublisher
from omni_box.core.converters import RawEventConverter
from omni_box.infra.brokers.kafka import KafkaEventPublisher
from omni_box.infra.storage.postgres import PostgresOutboxRepository
from omni_box.infra.storage.postgres.orm import OutboxEventDBBase
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase

BATCH = 1000
POLL_S = 0.005

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


class Base(DeclarativeBase):
    pass


class OutboxEventDB(OutboxEventDBBase, Base):
    pass


async def tables(asyncpg):
    engine = create_async_engine(asyncpg)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


async def relay(asyncpg, servers):
    sessions = async_sessionmaker(create_async_engine(asyncpg))
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        broker = KafkaEventPublisher(producer=producer, converter=RawEventConverter())
        while True:
            async with sessions() as session, session.begin():
                repository = PostgresOutboxRepository(session, model_class=OutboxEventDB)
                result = await OutboxPublisher(repository, broker).publish_batch(worker_id="relay", batch_size=BATCH)
            if not result.processed_event_ids:
                await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    task = json.loads(sys.argv[2])
    asyncio.run(tables(task["asyncpg"]) if sys.argv[1] == "tables" else relay(task["asyncpg"], task["servers"]))
