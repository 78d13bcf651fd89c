"""The outside world: recorded ports, HTTP stand-ins, and which calls count once."""

from __future__ import annotations

import http.client
import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pytest

from bothends import AsyncContext, ConfigError, Context, Service
from bothends.testing import answering, explore, recorded
from bothends.testing.exploring.boundaries import Crash, Fault
from bothends.testing.exploring.causes import Cause
from bothends.testing.exploring.databases import Database
from bothends.testing.exploring.outside import WORLDS, CallFailed, OutsideWorld, Recorded
from bothends.testing.exploring.pictures import Picture, outside_calls
from bothends.testing.exploring.tape import Tape
from bothends.testing.exploring.worlds import World
from tests.exploring.planted.events import ONE, Paid

URL = "http://bank.example:8080"


class Bank:
    def __init__(self) -> None:
        self.charges: dict[str, int] = {}
        self.notes: list[str] = []

    def charge(self, cents: int, key: str | None = None) -> str:
        self.charges[key or f"none {len(self.charges)}"] = cents
        return f"receipt {key}"

    def find(self, key: str) -> int | None:
        return self.charges.get(key)


# Ports


def test_outside_of_an_exploration_a_port_is_what_it_wraps() -> None:
    bank = Bank()
    port = recorded(bank)
    assert port.charge(5, "a") == "receipt a"
    assert (bank.charges, port.charges) == ({"a": 5}, {"a": 5})
    assert "recorded(" in repr(port)


def test_a_function_is_a_port_as_well() -> None:
    sent: list[str] = []
    send = recorded(sent.append, name="send")
    send("hello")
    assert sent == ["hello"]


def test_reads_names_methods_that_are_there() -> None:
    with pytest.raises(ConfigError, match="'look'"):
        recorded(Bank(), reads=["look"])


@pytest.fixture
def world() -> Any:
    def make(**plan: Fault) -> OutsideWorld:
        tape = Tape({int(number[1:]): fault for number, fault in plan.items()})
        tape.running = True
        WORLDS.now = OutsideWorld(tape)
        return WORLDS.now

    yield make
    WORLDS.now = None


def test_a_call_is_written_down_with_its_key_and_arguments(world: Callable[..., OutsideWorld]) -> None:
    made = world()
    port = recorded(Bank(), reads=["find"])
    port.charge(7, key="k-1")
    port.charge(8)
    port.find("k-1")
    assert [(c.name, c.key, c.reads) for c in made.calls] == [
        ("bank.charge", "k-1", False), ("bank.charge", None, False), ("bank.find", "k-1", True)]
    assert made.calls[0].arguments == (("cents", "7"), ("key", "'k-1'"))
    assert [b.durable for b in made.tape.boundaries] == [True, True, False]


@pytest.mark.parametrize(("fault", "error", "happened"), [
    (Fault.FAILS, CallFailed, False), (Fault.HAPPENED, CallFailed, True), (Fault.CRASH_BEFORE, Crash, False),
    (Fault.CRASH_AFTER, Crash, True),
])
def test_what_a_fault_does_to_a_call(
    world: Callable[..., OutsideWorld], fault: Fault, error: type[BaseException], happened: bool
) -> None:
    made, bank = world(n0=fault), Bank()
    with pytest.raises(error):
        recorded(bank).charge(7, "k")
    assert bool(bank.charges) is happened
    assert len(made.calls) == happened
    assert issubclass(CallFailed, ConnectionError)


def test_a_dead_process_calls_nobody(world: Callable[..., OutsideWorld]) -> None:
    made, bank = world(n0=Fault.CRASH_AFTER), Bank()
    port = recorded(bank)
    with pytest.raises(Crash):
        port.charge(1, "a")
    with pytest.raises(Crash):  # a ``finally`` of the handler, say
        port.charge(2, "b")
    assert list(bank.charges) == ["a"]
    assert len(made.calls) == 1


def test_what_a_port_holds_is_put_back() -> None:
    bank = Bank()
    port: Any = recorded(bank)
    assert isinstance(port, Recorded)
    state = port.state()
    bank.charge(1, "a")
    bank.notes.append("x")
    port.put(state)
    assert (bank.charges, bank.notes) == ({}, [])
    letters: list[str] = []
    box: Any = recorded(letters)
    state = box.state()
    letters.append("a")
    box.put(state)
    assert letters == []


def test_calls_with_one_key_and_the_same_arguments_count_once(world: Callable[..., OutsideWorld]) -> None:
    made = world()
    port = recorded(Bank(), reads=["find"])
    for key, cents in (("a", 1), ("a", 1), ("a", 2), (None, 1), (None, 1)):
        port.charge(cents, key)
    port.find("a")
    picture = Picture()
    outside_calls(picture, made.calls)
    assert picture.columns["call bank.charge"] == ("idempotency key", "cents", "key")
    assert sorted(picture.rows["call bank.charge"]) == [
        ("a", "1", "'a'"), ("a", "2", "'a'"), ("none", "1", "None"), ("none", "1", "None")]
    assert list(picture.rows) == ["call bank.charge"]


# HTTP


class Server:
    def __init__(self) -> None:
        self.charged: dict[str, str] = {}

    def __call__(self, verb: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        if verb == "GET":
            return 404, b"{}"
        self.charged.setdefault(headers.get("idempotency-key", f"none {len(self.charged)}"), body.decode())
        return 201, json.dumps({"receipt": path}).encode()


server = answering(URL, Server())


def by_urllib(order: str, key: str | None) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    with urllib.request.urlopen(urllib.request.Request(f"{URL}/charges", order.encode(), headers)) as answer:
        assert (answer.status, json.load(answer)) == (201, {"receipt": "/charges"})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{URL}/charges/none")


def by_http_client(order: str, key: str | None) -> None:
    connection = http.client.HTTPConnection("bank.example", 8080)
    for _ in range(2 if key else 1):  # a connection that is kept, and used again
        connection.request("POST", "/charges", order.encode(), {"Idempotency-Key": key} if key else {})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())) == (201, {"receipt": "/charges"})
    connection.close()


def by_httpx(order: str, key: str | None) -> None:
    with httpx.Client(verify=False) as client:
        answer = client.post(f"{URL}/charges?a=1", content=order, headers={"Idempotency-Key": key} if key else {})
        assert (answer.status_code, answer.json()) == (201, {"receipt": "/charges?a=1"})


CLIENTS = [by_urllib, by_http_client, by_httpx]


def charging(client: Callable[[str, str | None], None], keyed: bool) -> Service:
    service = Service("charging")

    @service.consumer("pay").handle(Paid)
    def pay(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        client(paid.order, f"charge-{paid.order}" if keyed else None)

    return service


@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_with_a_key_may_be_repeated(client: Callable[[str, str | None], None]) -> None:
    report = explore(charging(client, True), [ONE])
    assert report.ok, str(report)
    assert not report.notes


@pytest.mark.parametrize("client", CLIENTS)
def test_one_without_may_not(client: Callable[[str, str | None], None]) -> None:
    report = explore(charging(client, False), [ONE])
    assert {finding.cause for finding in report.findings} == {Cause.CALL_WITHOUT_KEY}, str(report)
    assert "call POST bank.example:8080/charges" in report.findings[0].ending[0]


def test_coroutines_with_httpx() -> None:
    service = Service("charging")

    @service.consumer("pay").handle(Paid)
    async def pay(paid: Paid, ctx: AsyncContext[Any]) -> None:
        async with httpx.AsyncClient(verify=False) as client:
            answer = await client.post(f"{URL}/charges", content=paid.order)
            assert answer.status_code == 201

    report = explore(service, [ONE])
    assert {finding.cause for finding in report.findings} == {Cause.CALL_WITHOUT_KEY}, str(report)


@pytest.mark.parametrize("get", [urllib.request.urlopen, httpx.get], ids=["urllib", "httpx"])
def test_nobody_else_is_called(get: Callable[[str], Any]) -> None:
    service = Service("calling")

    @service.consumer("look").handle(Paid)
    def look(paid: Paid, ctx: Context[sqlite3.Connection]) -> None:
        with pytest.raises(Exception, match="nothing stands in for it") as caught:
            get("http://elsewhere.example/")
        ctx.connection.execute("insert into said values (?)", [str(caught.value)])

    def prepare(db: Any, database: Database) -> None:
        db.execute("create table said (text text)")
        database.publish(db, [service], [ONE])

    with World([service], prepare).opened() as world:
        ((said,),) = world.run({}).picture.rows["said"]
    assert "http://elsewhere.example:80" in said


def test_afterwards_the_clients_are_as_they_were() -> None:
    before = http.client.HTTPConnection.connect, httpx.HTTPTransport.handle_request
    explore(charging(by_httpx, True), [ONE], budget=3)
    assert (http.client.HTTPConnection.connect, httpx.HTTPTransport.handle_request) == before


@pytest.mark.parametrize("url", ["bank.example", "ftp://bank.example", "http://"])
def test_a_stand_in_needs_a_server(url: str) -> None:
    with pytest.raises(ConfigError, match="answering"):
        answering(url, Server())
