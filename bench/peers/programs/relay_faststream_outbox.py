"""A service's relay with faststream-outbox."""

import asyncio
import json
import logging
import sys

from faststream import FastStream
from faststream.kafka import KafkaBroker, KafkaResponse
from faststream_outbox import OutboxBroker, make_outbox_table
from faststream_outbox.annotations import OutboxMessage
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine

WORKERS = 32
BATCH = 1000
DELETES = 100
POLL_S = 0.005

metadata = MetaData()
table = make_outbox_table(metadata, table_name="outbox")


async def tables(engine):
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    await engine.dispose()


async def relay(engine, servers, topic):
    kafka = KafkaBroker(servers, acks="all", enable_idempotence=True, logger=None)
    outbox = OutboxBroker(engine, outbox_table=table, logger=logging.getLogger())

    @kafka.publisher(topic)
    @outbox.subscriber(
        "orders", max_workers=WORKERS, fetch_batch_size=BATCH, terminal_flush_batch_size=DELETES,
        min_fetch_interval=POLL_S, max_fetch_interval=POLL_S)
    async def publish(body: dict, message: OutboxMessage) -> KafkaResponse:
        own = {name: message.headers[name] for name in ("tenant", "trace", "schema")}
        return KafkaResponse(message.body, headers=own)

    async def connect() -> None:
        await kafka.start()

    await FastStream(outbox, on_startup=[connect], logger=None).run(log_level=logging.WARNING)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    task = json.loads(sys.argv[2])
    engine = create_async_engine(task["asyncpg"], pool_size=WORKERS + 4)
    asyncio.run(tables(engine) if sys.argv[1] == "tables" else relay(engine, task["servers"], task["topic"]))
