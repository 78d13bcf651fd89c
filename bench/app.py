"""App: the service that supervised processes run (`bothends relay bench.app`). One effect per sale: a row that no
constraint protects, with when and where it was made."""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg

from bench.shop import Sold
from bothends import Context, Retry, Service

__all__ = ["EFFECTS", "service"]

EFFECTS = """
create table effects (
    sale bigint not null, part int not null, sent double precision not null, done double precision not null, pid int not null);
create index on effects (part, sent)"""

service = Service("bench")
stock = service.consumer(
    "stock", topic=os.environ.get("BENCH_TOPIC", "bench.sales"), owner="bench", retry=Retry(attempts=None, crashes=None))


@stock.handle(Sold)
def take(sold: Sold, ctx: Context[psycopg.Connection[Any]]) -> None:
    ctx.connection.execute(
        "insert into effects values (%s, %s, %s, %s, %s)",
        (sold.order, ctx.message.partition, sold.at, time.monotonic(), os.getpid()))
