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

from bothends.demo.processes import Process
from bothends.ports import BatchReport, Broker, Outgoing, Publisher

__all__ = ["DyingPublisher", "ForgetfulBroker", "Forgetting", "main"]

PATIENCE_S = 45.0
"""With nothing to publish for so long, it ends without having forgotten anything."""


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
    """The process, from the demo's side. The ordinary relays make room for it, and are started again by ``close``."""

    def __init__(self, service: str, relays: Sequence[Process], environ: Mapping[str, str], folder: Path) -> None:
        self._service, self._relays, self._environ, self._folder = service, relays, environ, folder
        self._until = time.monotonic() + PATIENCE_S
        self._process: subprocess.Popen[str] | None = None
        for relay in relays:
            relay.begin_stop()

    def ended(self) -> bool:
        if self._process is None and all([relay.has_stopped() for relay in self._relays]):
            with (self._folder / "logs" / "forgetful.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "bothends.demo.forgetful", self._service], env=dict(self._environ),
                    cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                )
        return (self._process is not None and self._process.poll() is not None) or time.monotonic() > self._until

    def close(self, *, go_on: bool = True) -> int:
        """Ends it if need be; how many confirmed records it forgot. ``go_on``: the relays are started again."""
        said = ""
        if self._process is not None:
            self._process.kill()
            said, _ = self._process.communicate()
        if go_on:
            for relay in self._relays:
                relay.start()
        return int(said) if said.strip().isdecimal() else 0


def main() -> None:
    from bothends.brokers import open_broker
    from bothends.config import need_broker
    from bothends.operating.apps import load
    from bothends.relay import Relay, RelaySettings
    from bothends.stores import open_store

    outbox = load("bothends.demo.app").outboxes(sys.argv[1])[0]
    broker: Any = ForgetfulBroker(open_broker(need_broker(outbox.settings)))
    settings = RelaySettings(lease_s=outbox.settings.lease_s, source=outbox.source)
    relay = Relay(open_store(outbox.url, outbox.schema), broker, settings=settings, name="forgetful")
    relay.run(threading.Event())


if __name__ == "__main__":
    main()
