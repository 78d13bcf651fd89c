"""The broker is away for a while under load: no attempt is spent, nothing dies, everything arrives in order afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from bothends.demo.proxies import Address, Proxies
from tests.acceptance.audit import audit, clean
from tests.acceptance.ground import ground


def prove(pg: int, tell: Callable[[str], None], seconds: float = 20.0) -> dict[str, Any]:
    real = urlsplit(os.environ["BOTHENDS_TEST_KAFKA_URL"])
    assert real.hostname is not None
    assert real.port is not None
    proxies = Proxies({"kafka": Address(real.hostname, real.port)}, kafka=("kafka",))
    try:
        host, port = proxies.addresses["kafka"]
        with ground(pg, keys=64, told=tell, broker=f"kafka://{host}:{port}") as here:
            here.relays(2)
            here.workers(2)
            writers = here.writers(2, keys=64, rate=300)
            here.until("effects come", lambda: int(here.ask("select count(*) from effects_log")) > 1000)
            proxies.cut("kafka")
            tell("the broker is gone")
            until = time.monotonic() + seconds
            here.until("the outage is over", lambda: time.monotonic() > until, timeout_s=seconds + 10)
            away = here.outbox_attempts()
            waiting = int(here.ask("select count(*) from written")) - int(here.ask("select count(*) from effects_log"))
            proxies.restore("kafka")
            back = time.monotonic()
            tell(f"the broker is back; {waiting} events wait")
            seen = int(here.ask("select count(*) from effects_log"))
            resumed = here.until("effects come again", lambda: int(here.ask("select count(*) from effects_log")) > seen)
            here.stop(writers)
            here.until("everything has settled", here.settled)
            attempts, dead = here.outbox_attempts()
            found = audit(here)
            return {
                **found, "outage_s": seconds, "waiting": waiting, "attempts_spent": attempts + away[0], "dead": dead + away[1],
                "dead_letters": len(here.dead()), "resumed_s": round(resumed, 2),
                "settled_s": round(time.monotonic() - back, 2),
                "ok": clean(found) and attempts + away[0] + dead + away[1] + len(here.dead()) == 0 and waiting > 0,
            }
    finally:
        proxies.close()
