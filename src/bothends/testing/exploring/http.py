"""HTTP in an exploration: requests of the user's handlers go to a stand-in, never to the network.

``http.client`` is where the standard library's clients meet (and those that are built on it); it is given a socket that
speaks HTTP to a function.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.parser import BytesParser
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from bothends.errors import ConfigError
from bothends.testing.exploring.outside import WORLDS, CallFailed, OutsideCall, Recorded

__all__ = ["Answer", "Answering", "answering", "http_answered"]

Answer: TypeAlias = tuple[int, bytes]
"""Status and body."""
KEY_HEADER = "idempotency-key"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_BODY_MAX = 200


class Answering(Recorded):
    """A stand-in for one server. Made by ``answering``."""

    def __init__(self, url: str, app: Any) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"answering({url!r}) needs http://host[:port] or https://host[:port]")
        super().__init__(app, parts.netloc, None, frozenset())
        self.place = (parts.hostname, parts.port or (443 if parts.scheme == "https" else 80))

    def answer(self, verb: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Asks the stand-in, through the tape."""
        ask: Callable[[], Answer] = lambda: self._port(verb, path, headers, body)  # noqa: E731
        world = WORLDS.now
        if world is None or not world.tape.running:
            return ask()
        shown = body[:_BODY_MAX].decode("utf-8", "backslashreplace")
        call = OutsideCall(
            f"{verb} {self._name}{path}", headers.get(KEY_HEADER), (("body", shown),), verb in _READING)
        answered: Answer = world.call(call, ask)
        return answered


def answering(url: str, app: Callable[[str, str, Mapping[str, str], bytes], Answer]) -> Answering:
    """A stand-in for the server at ``url`` (``http://host[:port]``): while the explorer runs, requests that handlers make with
    ``http.client``, or what is built on it (``urllib``), are answered by ``app(verb, path, headers, body)`` with a status and
    a body, and recorded. Header names are lower case; ``Idempotency-Key`` is the call's key; GET, HEAD and OPTIONS only read.
    Keep it in a module's global: the explorer finds it there, and puts back what ``app`` holds before each run.

    Raises ConfigError for another URL.
    """
    return Answering(url, app)


class _Socket:
    """A connection to a stand-in: what is sent is a request, what is read is its answer."""

    def __init__(self, server: Answering) -> None:
        self._server = server
        self._sent = bytearray()

    def sendall(self, data: Any) -> None:
        self._sent += bytes(data)

    def makefile(self, mode: str, *sizes: Any, **options: Any) -> io.BytesIO:
        head, _, body = bytes(self._sent).partition(b"\r\n\r\n")
        self._sent.clear()
        first, _, rest = head.partition(b"\r\n")
        verb, path, _ = first.decode("latin-1").split(" ", 2)
        headers = {name.lower(): value for name, value in BytesParser().parsebytes(rest, headersonly=True).items()}
        status, answer = self._server.answer(verb, path, headers, body)
        reason = http.client.responses.get(status, "")
        return io.BytesIO(f"HTTP/1.1 {status} {reason}\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)

    def close(self) -> None:
        self._sent.clear()

    def settimeout(self, timeout: float | None) -> None:
        """Nothing here waits."""

    def setsockopt(self, *_: Any) -> None:
        """Nothing here is sent."""


@contextmanager
def http_answered(servers: Sequence[Recorded]) -> Iterator[None]:
    """Inside, connections of running handlers lead to the stand-ins among ``servers``; others are refused."""
    places = {server.place: server for server in servers if isinstance(server, Answering)}
    plain: list[tuple[Any, Any]] = []
    kinds: tuple[Any, ...] = (http.client.HTTPConnection, http.client.HTTPSConnection)
    for kind in kinds:
        plain.append((kind, kind.__dict__["connect"]))
        kind.connect = _connecting(places, kind.__dict__["connect"])
    try:
        yield
    finally:
        for kind, connect in plain:
            kind.connect = connect


def _connecting(places: Mapping[tuple[str, int], Answering], plain: Any) -> Callable[[Any], None]:
    def connect(connection: Any) -> None:
        world = WORLDS.now
        server = places.get((connection.host, connection.port))
        if server is not None:
            connection.sock = _Socket(server)
        elif world is not None and world.tape.running:
            raise CallFailed(
                f"a handler calls {connection.host}:{connection.port} while the explorer runs, and nothing stands in for it: "
                f"answering('http://{connection.host}:{connection.port}', app) does, in a module's global"
            )
        else:
            plain(connection)

    return connect
