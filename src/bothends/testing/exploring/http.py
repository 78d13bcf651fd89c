"""HTTP in an exploration: requests of the user's handlers go to a stand-in, never to the network.

``http.client`` is where the standard library's clients meet (and those that are built on it); it is given a socket that
speaks HTTP to a function. ``httpx``, where it is imported, is given transports that ask the same function.
"""

from __future__ import annotations

import http.client
import io
import sys
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
        def ask() -> Answer:
            answered: Answer = self._port(verb, path, headers, body)
            return answered

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
    ``http.client``, what is built on it (``urllib``), or ``httpx`` are answered by ``app(verb, path, headers, body)`` with a
    status and a body, and recorded. Header names are lower case; ``Idempotency-Key`` is the call's key; GET, HEAD and OPTIONS
    only read. Keep it in a module's global: the explorer finds it there, and puts back what ``app`` holds before each run.

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


Places = Mapping[tuple[str, int], Answering]


@contextmanager
def http_answered(servers: Sequence[Recorded]) -> Iterator[None]:
    """Inside, requests of running handlers lead to the stand-ins among ``servers``; others are refused."""
    places = {server.place: server for server in servers if isinstance(server, Answering)}
    plain: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, make: Callable[[Places, Any], Any]) -> None:
        plain.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, make(places, owner.__dict__[name]))

    put(http.client.HTTPConnection, "connect", _connecting)
    put(http.client.HTTPSConnection, "connect", _connecting)
    if (httpx := sys.modules.get("httpx")) is not None:
        put(httpx.HTTPTransport, "handle_request", _handling)
        put(httpx.AsyncHTTPTransport, "handle_async_request", _handling_async)
    try:
        yield
    finally:
        for owner, name, was in plain:
            setattr(owner, name, was)


def _is_explored() -> bool:
    world = WORLDS.now
    return world is not None and world.tape.running


def _refusal(host: str, port: int) -> CallFailed:
    return CallFailed(
        f"a handler calls {host}:{port} while the explorer runs, and nothing stands in for it: "
        f"answering('http://{host}:{port}', app) does, in a module's global"
    )


def _connecting(places: Places, plain: Any) -> Callable[[Any], None]:
    def connect(connection: Any) -> None:
        server = places.get((connection.host, connection.port))
        if server is not None:
            connection.sock = _Socket(server)
        elif _is_explored():
            raise _refusal(connection.host, connection.port)
        else:
            plain(connection)

    return connect


def _server_for(places: Places, request: Any) -> Answering | None:
    """The stand-in for an ``httpx.Request``; None where the request may go where it would. Raises CallFailed."""
    host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
    server = places.get((host, port))
    if server is None and _is_explored():
        raise _refusal(host, port)
    return server


def _answered(server: Answering, request: Any, body: bytes) -> Any:
    import httpx

    headers = {name.lower(): value for name, value in request.headers.items()}
    status, answer = server.answer(request.method, request.url.raw_path.decode("ascii"), headers, body)
    return httpx.Response(status, content=answer, request=request)


def _handling(places: Places, plain: Any) -> Callable[[Any, Any], Any]:
    def handle_request(transport: Any, request: Any) -> Any:
        server = _server_for(places, request)
        return plain(transport, request) if server is None else _answered(server, request, request.read())

    return handle_request


def _handling_async(places: Places, plain: Any) -> Callable[[Any, Any], Any]:
    async def handle_async_request(transport: Any, request: Any) -> Any:
        server = _server_for(places, request)
        if server is None:
            return await plain(transport, request)
        return _answered(server, request, await request.aread())

    return handle_async_request
