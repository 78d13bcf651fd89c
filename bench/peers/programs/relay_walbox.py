"""A service's relay with walbox."""

import asyncio
import json
import sys
from urllib.parse import urlsplit

from aiokafka import AIOKafkaProducer
from psycopg_pool import AsyncConnectionPool
from walbox import ChangeKind, Walbox, WalboxOptions


async def relay(database, servers, topic):
    options = WalboxOptions(
        consumer_name="relay", dsn=database, slot_name=urlsplit(database).path[1:], publication_name="peers")
    async with (
        AIOKafkaProducer(bootstrap_servers=servers, acks="all", enable_idempotence=True) as producer,
        AsyncConnectionPool(database, min_size=1, max_size=5) as pool,
    ):
        async def handle(transaction, checkpoint):
            sent = [
                await producer.send(
                    topic, change.new["payload"].encode(), change.new["entity_id"].encode(),
                    headers=[(name, value.encode()) for name, value in json.loads(change.new["headers"]).items()])
                for change in transaction.changes
                if change.table == "public.outbox" and change.kind == ChangeKind.INSERT
            ]
            await asyncio.gather(*sent)
            await checkpoint.save(transaction.commit_lsn)

        await Walbox.build_with_pool(options, pool).run(handle)


if __name__ == "__main__":
    task = json.loads(sys.argv[2])
    asyncio.run(relay(task["database"], task["servers"], task["topic"]))
