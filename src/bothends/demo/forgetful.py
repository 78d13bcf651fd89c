"""Forgetful: a relay that dies when the broker has confirmed a batch and the cursor has not been stored.

    python -m bothends.demo.forgetful SERVICE

It is the product's relay, given a broker whose publisher ends the process with SIGKILL instead of handing over its first
confirmation. It prints how many records were confirmed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bothends.ports import BatchReport, Broker, Outgoing, Publisher

__all__ = ["DyingPublisher", "ForgetfulBroker", "Forgetting", "main"]

PATIENCE_S = 15.0
"""Longer than a dead relay's lease; with nothing to publish for so long, it ends without having forgotten anything."""


class DyingPublisher:
    def __init__(self, real: Publisher) -> None:
        self._real = real
        self._sizes: dict[int, int] = {}

    def send(self, batch: int, records: Sequence[Outgoing]) -> None:
        self._real.send(batch, records)
        self._sizes[batch] = len(records)

    def poll(self, timeout_s: float) -> list[BatchReport]:
        reports = self._real.poll(timeout_s)
        for report in reports:
            if not report.failures and self._sizes.get(report.batch):
                os.write(1, f"{self._sizes[report.batch]}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return reports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class ForgetfulBroker:
    def __init__(self, real: Broker) -> None:
        self._real = real

    def publisher(self, name: str) -> DyingPublisher:
        return DyingPublisher(self._real.publisher(name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class Forgetting:
    """The process, from the demo's side."""

    def __init__(self, service: str, environ: Mapping[str, str], folder: Path) -> None:
        self._until = time.monotonic() + PATIENCE_S
        with (folder / "logs" / "forgetful.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bothends.demo.forgetful", service], env=dict(environ), cwd=folder,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )

    def ended(self) -> bool:
        return self._process.poll() is not None or time.monotonic() > self._until

    def close(self) -> int:
        """Ends it if need be; how many confirmed records it forgot."""
        self._process.kill()
        said, _ = self._process.communicate()
        return int(said) if said.strip().isdecimal() else 0


def main() -> None:
    from bothends.apps import load
    from bothends.brokers import open_broker
    from bothends.config import need_broker
    from bothends.relay import Relay, RelaySettings
    from bothends.stores import open_store

    outbox = load("bothends.demo.app").outboxes(sys.argv[1])[0]
    broker: Any = ForgetfulBroker(open_broker(need_broker(outbox.settings)))
    settings = RelaySettings(lease_s=outbox.settings.lease_s)
    relay = Relay(open_store(outbox.url, outbox.schema), broker, settings=settings, name="forgetful")
    relay.run(threading.Event())


if __name__ == "__main__":
    main()
