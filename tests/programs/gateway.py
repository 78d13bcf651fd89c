"""A payment gateway for tests, in a process of its own: it honours Idempotency-Key, and it fails as gateways fail.

    python gateway.py        prints its URL, serves until it is ended

``POST /charges`` with ``{"card": token, "eur": amount}``: token ``declined`` is answered with 402; ``lost`` is charged and
answered with 503 the first time, so that the caller cannot know; ``stuck`` is charged and not answered at all.
``GET /charges/by-key/KEY`` finds a charge or 404. ``GET /calls`` is what a test looks at: every POST that came, in order.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BODY_MAX = 10_000


class Gateway:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.charges: dict[str, dict[str, Any]] = {}
        self.calls: list[str] = []

    def charge(self, key: str, body: dict[str, Any]) -> tuple[int, object]:
        with self.lock:
            self.calls.append(key)
            if body["card"] == "declined":
                return 402, {"error": "declined"}
            known = key in self.charges
            charge = self.charges.setdefault(key, {"id": f"r-{len(self.charges) + 1}", "eur": body["eur"]})
            if body["card"] == "stuck" and not known:
                return 0, {}
            if body["card"] == "lost" and not known:
                return 503, {"error": "charged, and the answer was lost"}
            return 201, charge


def handler_of(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = min(int(self.headers["Content-Length"]), BODY_MAX)
            self.answer(*gateway.charge(self.headers["Idempotency-Key"], json.loads(self.rfile.read(size))))

        def do_GET(self) -> None:
            if self.path == "/calls":
                return self.answer(200, gateway.calls)
            charge = gateway.charges.get(self.path.removeprefix("/charges/by-key/"))
            return self.answer(200, charge) if charge else self.answer(404, {})

        def answer(self, status: int, body: object) -> None:
            if not status:
                self.rfile.read(1)  # until the caller is gone
                return
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(Gateway()))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
