"""Gateway: the outside payment service, a process of its own over HTTP, that no fault of the demo touches.

It honours ``Idempotency-Key``: a repeated key gets the first answer, and with another amount a 422. Each charge is
appended to a file before anything is answered. For some keys it answers only after its clients have given up.

    python -m bothends.demo.gateway FILE        prints its URL; ends when its standard input ends
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
from decimal import Decimal, InvalidOperation
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from bothends.demo.audit import Charge

__all__ = ["LATE_EVERY", "LATE_S", "Gateway", "main", "read_charges"]

LATE_EVERY = 500
"""One key in so many is answered late, the first time."""
LATE_S = 1.6
"""How late: longer than the client waits."""
_BODY_MAX = 64 * 1024
_KEY_MAX = 300


class Gateway(ThreadingHTTPServer):
    """Listens on a free port of the loopback."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, ledger: Path, *, late_every: int = LATE_EVERY, late_s: float = LATE_S) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self._ledger = ledger.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._charges: dict[str, tuple[Decimal, str]] = {}
        self._late_every, self._late_s = late_every, late_s
        self._closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def charge(self, key: str, amount: Decimal) -> tuple[int, dict[str, str]]:
        with self._lock:
            if key in self._charges:
                known, receipt = self._charges[key]
                if known != amount:
                    return 422, {"error": f"{key} was used for {known} before"}
                return 200, {"receipt": receipt}
            receipt = f"r-{len(self._charges) + 1}"
            self._ledger.write(json.dumps({"key": key, "amount": str(amount), "receipt": receipt}).encode() + b"\n")
            self._charges[key] = amount, receipt
        if int.from_bytes(hashlib.md5(key.encode()).digest()[:4], "big") % self._late_every == 0:
            self._closing.wait(self._late_s)
        return 201, {"receipt": receipt}

    def find(self, key: str) -> tuple[int, dict[str, str]]:
        with self._lock:
            if key in self._charges:
                return 200, {"receipt": self._charges[key][1]}
        return 404, {"error": f"{key} is unknown"}

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed or gave up leave half a conversation: nothing to report."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def server_close(self) -> None:
        self._closing.set()
        super().server_close()
        self._ledger.close()


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 16 * 1024  # head and body in one write
    timeout = 120
    server: Gateway

    def do_POST(self) -> None:
        key = unquote(self.headers.get("Idempotency-Key", ""))
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > _BODY_MAX:
            self.close_connection = True
            self._answer(413, {"error": f"a body of at most {_BODY_MAX} bytes, with its length, is required"})
            return
        body = self.rfile.read(int(size))
        if self.path != "/charges" or not 1 <= len(key) <= _KEY_MAX:
            self._answer(400, {"error": "POST /charges with an Idempotency-Key of 1 to 300 characters"})
            return
        try:
            amount = Decimal(json.loads(body)["amount"])
            if not amount.is_finite() or amount <= 0:
                raise ValueError("not above zero")
        except (ValueError, KeyError, TypeError, InvalidOperation):
            self._answer(400, {"error": "the body must be {\"amount\": \"12.34\"}, above zero"})
            return
        self._answer(*self.server.charge(key, amount))

    def do_GET(self) -> None:
        prefix = "/charges/by-key/"
        if self.path.startswith(prefix):
            self._answer(*self.server.find(unquote(self.path.removeprefix(prefix))))
        else:
            self._answer(404, {"error": f"GET {prefix}KEY"})

    def _answer(self, status: int, answer: dict[str, str]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the file of charges is the log."""


def read_charges(ledger: Path) -> list[Charge]:
    """Every charge, in order. Raises ValueError for a line that is not whole."""
    with ledger.open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [Charge(row["key"], Decimal(row["amount"])) for row in rows]


def main() -> None:
    gateway = Gateway(Path(sys.argv[1]))
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    print(gateway.url, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
    gateway.shutdown()
    gateway.server_close()


if __name__ == "__main__":
    main()
