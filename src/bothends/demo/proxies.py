"""Proxies: TCP in front of a database and a broker, so that they can be absent without touching the servers.

    python -m bothends.demo.proxies SPEC

SPEC is JSON: ``{name: {"to": [host, port], "kafka": false}}``. The first line of output is ``{name: [host, port]}``, where
each listens. Commands come on standard input, and each is answered by the line ``ok``:

    cut NAME                        resets what is connected, refuses what connects
    drop NAME                       resets what is connected
    delay NAME SECONDS              all bytes, in both directions, arrive so much later
    silence NAME requests|answers   what is sent in this direction never arrives; connecting goes on
    turn NAME HOST PORT             leads there from now on; what is connected is reset
    restore NAME                    as at first; connections that a silence has robbed of bytes are reset

The process ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Literal, NamedTuple, cast, get_args

from bothends.demo.kafka_addresses import Rewriter

__all__ = ["Address", "Direction", "Proxies", "Proxy", "main"]

Direction = Literal["requests", "answers"]

_CONNECTIONS_MAX = 2_000
_LISTENERS_MAX = 100
_ANSWER_S = 10.0
_DELAYED_MAX = 4 * 1024 * 1024
"""Bytes of one direction that may be under way; beyond them the sender waits."""


class Address(NamedTuple):
    host: str
    port: int


class _Side(asyncio.Protocol):
    """One end of a proxied connection; what it receives goes to its peer, as fast as the peer takes it."""

    def __init__(self, proxy: Proxy, target: Address, rewriter: Rewriter | None, peer: _Side | None = None) -> None:
        self.proxy, self.target, self.rewriter, self.peer = proxy, target, rewriter, peer
        self.is_client = peer is None
        self.transport: asyncio.Transport | None = None
        self.is_robbed = False
        """Something that it should have received was swallowed: its connection can only be reset."""
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._under_way_bytes = 0
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.proxy.sides.add(self)
        if self.is_client:  # nothing is read before the server's end is there
            if len(self.proxy.sides) > _CONNECTIONS_MAX:
                self.transport.abort()
                return
            self.transport.pause_reading()
            self.proxy.lead(self)
        elif self.peer is None or self.peer.transport is None or self.peer.transport.is_closing():
            self.transport.abort()
        else:
            self.peer.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._is_silent():
            self._rob()
            return
        if self.rewriter is not None:
            try:
                data = self.rewriter.request(data) if self.is_client else self.rewriter.answer(data)
            except (ValueError, IndexError, struct.error) as error:
                print(f"proxy to {self.target}: {error}; connection closed", file=sys.stderr, flush=True)
                assert self.transport is not None
                self.transport.abort()
                return
        if self.proxy.delay_s or self._under_way:
            self._send_later(data)
        else:
            self._hand_on(data)

    def _hand_on(self, data: bytes) -> None:
        if self.peer is not None and self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.write(data)

    def _is_silent(self) -> bool:
        return self.proxy.silent == ("requests" if self.is_client else "answers")

    def _rob(self) -> None:
        if self.peer is not None:
            self.peer.is_robbed = True

    def _send_later(self, data: bytes) -> None:
        """In order, also when the delay has become shorter meanwhile."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + self.proxy.delay_s, self._under_way[-1][0] if self._under_way else 0.0)
        if not self._under_way:
            loop.call_at(due, self._arrive)
        self._under_way.append((due, data))
        self._under_way_bytes += len(data)
        if self._under_way_bytes > _DELAYED_MAX and self.transport is not None:
            self._is_full = True
            self.transport.pause_reading()

    def _arrive(self) -> None:
        loop = asyncio.get_running_loop()
        while self._under_way and self._under_way[0][0] <= loop.time():
            data = self._under_way.popleft()[1]
            self._under_way_bytes -= len(data)
            if self._is_silent():
                self._rob()
            else:
                self._hand_on(data)
        if self._under_way:
            loop.call_at(self._under_way[0][0], self._arrive)
        if self.transport is None or self.transport.is_closing():
            if not self._under_way:
                self._end_peer()
        elif self._is_full and self._under_way_bytes <= _DELAYED_MAX:
            self._is_full = False
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.proxy.sides.discard(self)
        if self._is_silent():
            self._rob()  # the end does not arrive either
        elif error is not None:
            self._end_peer(error)
        elif not self._under_way:
            self._end_peer()

    def _end_peer(self, error: Exception | None = None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.abort() if error else self.peer.transport.close()


class Proxy:
    """One listener on the loopback and where it leads. For Kafka, each broker that an answer names gets a listener."""

    def __init__(self, to: Address, *, kafka: bool = False) -> None:
        self.to = to
        self.sides: set[_Side] = set()
        self._kafka = kafka
        self.is_open = False
        self.delay_s = 0.0
        self.silent: Direction | None = None
        self._listeners: dict[Address, _Listener] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = Address(*self._moved(*to))

    def _moved(self, host: str, port: int) -> tuple[str, int]:
        """Where (host, port) is reached through us; a new listener for one that was not known."""
        target = Address(host, port)
        if target not in self._listeners:
            if len(self._listeners) >= _LISTENERS_MAX:
                raise ValueError(f"more than {_LISTENERS_MAX} brokers")
            listener = self._listeners[target] = _Listener(self, target)
            if self.is_open:
                self._spawn(listener.open())
        return self._listeners[target].address

    async def restore(self) -> None:
        self.is_open, self.delay_s, self.silent = True, 0.0, None
        self._reset([side for side in self.sides if side.is_robbed or (side.peer is not None and side.peer.is_robbed)])
        for listener in self._listeners.values():
            await listener.open()

    def cut(self) -> None:
        """Closes the listeners, so that connecting is refused, and resets what was connected."""
        self.is_open = False
        for listener in self._listeners.values():
            listener.close()
        self.drop()

    def drop(self) -> None:
        """Resets what is connected; who connects again gets in."""
        self._reset(list(self.sides))

    def turn(self, to: Address) -> None:
        """Leads there from now on. Of a database: Kafka names its own addresses."""
        listener = self._listeners.pop(self.to)
        self.to = listener.target = to
        self._listeners[to] = listener
        self.drop()

    @staticmethod
    def _reset(sides: list[_Side]) -> None:
        for side in sides:
            if side.transport is not None:
                side.transport.abort()

    def client(self, target: Address) -> _Side:
        return _Side(self, target, Rewriter(self._moved) if self._kafka else None)

    def lead(self, client: _Side) -> None:
        self._spawn(self._lead(client))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lead(self, client: _Side) -> None:
        server = _Side(self, client.target, client.rewriter, client)
        client.peer = server
        try:
            await asyncio.get_running_loop().create_connection(lambda: server, *client.target)
        except OSError:
            if client.transport is not None:
                client.transport.abort()


class _Listener:
    """One port of the loopback, the same for as long as the process lives."""

    def __init__(self, proxy: Proxy, target: Address) -> None:
        self._proxy, self.target = proxy, target
        self._socket: socket.socket | None = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._server: asyncio.Server | None = None
        self._opening = False
        self.address: tuple[str, int] = self._socket.getsockname()[:2]

    async def open(self) -> None:
        if self._server is not None or self._opening:
            return
        self._opening = True
        ready = self._socket or socket.create_server(self.address, backlog=256)
        self._socket = None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: self._proxy.client(self.target), sock=ready)
        self._opening = False
        if not self._proxy.is_open:  # it was cut meanwhile
            self.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


async def _serve(spec: Mapping[str, Mapping[str, Any]]) -> None:
    proxies = {name: Proxy(Address(*one["to"]), kafka=bool(one["kafka"])) for name, one in spec.items()}
    for proxy in proxies.values():
        await proxy.restore()
    print(json.dumps({name: proxy.address for name, proxy in proxies.items()}), flush=True)
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode():
        words = [*line.split(), "", "", "", ""]
        verb, name, how, port = words[:4]
        if name not in proxies or not await _obey(proxies[name], verb, how, port):
            print(f"unknown: {line.strip()}", flush=True)
        else:
            print("ok", flush=True)


async def _obey(proxy: Proxy, verb: str, how: str, port: str) -> bool:
    if verb == "cut":
        proxy.cut()
    elif verb == "drop":
        proxy.drop()
    elif verb == "delay":
        proxy.delay_s = float(how)
    elif verb == "silence" and how in get_args(Direction):
        proxy.silent = cast(Direction, how)
    elif verb == "turn" and port.isdecimal():
        proxy.turn(Address(how, int(port)))
    elif verb == "restore":
        await proxy.restore()
    else:
        return False
    return True


class Proxies:
    """The process, from the demo's side."""

    def __init__(self, to: Mapping[str, Address], *, kafka: Collection[str] = ()) -> None:
        spec = json.dumps({name: {"to": address, "kafka": name in kafka} for name, address in to.items()})
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bothends.demo.proxies", spec],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        first = self._answer()
        if not first:
            raise OSError("the proxies could not start; see above")
        self.addresses = {name: Address(*address) for name, address in json.loads(first).items()}

    def cut(self, name: str) -> None:
        self._command(f"cut {name}")

    def drop(self, name: str) -> None:
        self._command(f"drop {name}")

    def delay(self, name: str, seconds: float) -> None:
        self._command(f"delay {name} {seconds}")

    def silence(self, name: str, direction: Direction) -> None:
        self._command(f"silence {name} {direction}")

    def turn(self, name: str, to: Address) -> None:
        self._command(f"turn {name} {to.host} {to.port}")

    def restore(self, name: str) -> None:
        self._command(f"restore {name}")

    def close(self) -> None:
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _command(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()
        if (answer := self._answer().strip()) != "ok":
            raise OSError(f"the proxies answered {answer!r} to {text!r}")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def main() -> None:
    asyncio.run(_serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
