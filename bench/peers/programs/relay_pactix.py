"""A service's relay with pactix."""

import asyncio
import json
import sys

from aiokafka import AIOKafkaProducer
from pactix.config import PactixConfig
from pactix.db.tables import metadata
from pactix.outbox import OutboxRunner, OutboxStore, PublisherRegistry
from pactix.transport.kafka import AIOKafkaProducerClient, KafkaOutboxPublisher, KafkaTopicRouter
from sqlalchemy.ext.asyncio import create_async_engine

BATCH = 1000
POLL_S = 0.005


async def tables(asyncpg):
    engine = create_async_engine(asyncpg)
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()


async def relay(asyncpg, servers, topic):
    engine, router, registry = create_async_engine(asyncpg), KafkaTopicRouter(), PublisherRegistry()
    await router.register("order.created", topic)
    async with AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer:
        await registry.register_all(KafkaOutboxPublisher(AIOKafkaProducerClient(producer), router))
        runner = OutboxRunner(OutboxStore(PactixConfig(outbox_batch_size=BATCH)), registry)
        while True:
            summary = await runner.run_once(engine)
            if not summary.claimed:
                await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    task = json.loads(sys.argv[2])
    asyncio.run(
        tables(task["asyncpg"]) if sys.argv[1] == "tables" else relay(task["asyncpg"], task["servers"], task["topic"]))
