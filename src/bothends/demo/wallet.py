"""Wallet: the client of the payment gateway, over HTTP. Each charge carries its ``Idempotency-Key``."""

from __future__ import annotations

import http.client
import json
import os
import threading
from decimal import Decimal
from urllib.parse import quote, urlsplit

from bothends import NOT_DONE, NotDone, NotSent, Permanent

__all__ = ["Wallet"]

TIMEOUT_S = 1.0
_ANSWER_MAX = 64 * 1024




class Wallet:
    """``url`` names the gateway; without it ``DEMO_GATEWAY_URL``, read at the first call. One connection per thread."""

    def __init__(self, url: str | None = None) -> None:
        self._url = url
        self._mine = threading.local()

    def charge(self, key: str, amount: Decimal) -> str:
        """The receipt. ``Permanent`` when the gateway says no, ``NotSent`` when it cannot be reached; any other error
        leaves open whether it charged."""
        body = json.dumps({"amount": str(amount)}).encode()
        headers = {"Idempotency-Key": quote(key, safe=""), "Content-Type": "application/json"}
        status, answer = self._ask("POST", "/charges", body, headers)
        if status in (402, 422):
            raise Permanent(f"the gateway refused {key}: {answer}", reason="refused_by_gateway")
        return self._receipt(key, status, answer)

    def find(self, key: str) -> str | NotDone:
        """What became of a charge whose answer never came."""
        status, answer = self._ask("GET", f"/charges/by-key/{quote(key, safe='')}", None, {})
        return NOT_DONE if status == 404 else self._receipt(key, status, answer)

    def _receipt(self, key: str, status: int, answer: object) -> str:
        if status not in (200, 201) or not isinstance(answer, dict):
            raise http.client.HTTPException(f"the gateway answered {status} to {key}")
        return str(answer["receipt"])

    def _ask(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, object]:
        connection = self._connected()
        try:
            connection.request(verb, path, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read(_ANSWER_MAX))
        except BaseException:
            connection.close()  # an answer that comes late must not be taken for the next one's
            raise

    def _connected(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._mine, "connection", None)
        if connection is None:
            parts = urlsplit(self._url or os.environ["DEMO_GATEWAY_URL"])
            connection = self._mine.connection = http.client.HTTPConnection(
                parts.hostname or "", parts.port, timeout=TIMEOUT_S
            )
        if connection.sock is None:
            try:
                connection.connect()
            except OSError as error:
                raise NotSent(f"the gateway cannot be reached: {error}") from error
        return connection
