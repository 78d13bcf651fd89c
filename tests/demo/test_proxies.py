"""The proxies, with real sockets; Kafka's clients through them in test_kafka_addresses."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from bothends.demo.proxies import Address, Proxies
from bothends.demo.world import address_of, moved


class Echo:
    """Sends back what it gets, in upper case; after ``end`` it closes."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self._socket.getsockname())
        self.heard = b""
        self._news = threading.Condition()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    with self._news:
                        self.heard = (self.heard + data)[-1000:]
                        self._news.notify_all()
                    connection.sendall(data.upper())
                    if data == b"end":
                        return
            except OSError:
                return

    def wait_for(self, text: bytes) -> None:
        with self._news:
            assert self._news.wait_for(lambda: text in self.heard, 5)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxies(echo: Echo) -> Iterator[Proxies]:
    one = Proxies({"database": echo.address, "other": echo.address})
    yield one
    one.close()


def say(to: Address, text: bytes) -> bytes:
    with socket.create_connection(to, 5) as connection:
        return exchange(connection, text)


def exchange(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    heard = b""
    while len(heard) < len(text) and (part := connection.recv(65536)):
        heard += part
    return heard


def is_silent(connection: socket.socket) -> bool:
    """For a moment, and then patient again."""
    connection.settimeout(0.2)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(5)
    return False


def is_broken(connection: socket.socket) -> bool:
    """A reset, or an end of file."""
    try:
        connection.sendall(b"b")
        return connection.recv(10) == b""
    except ConnectionError:
        return True


def test_bytes_pass_both_ways(proxies: Proxies) -> None:
    assert say(proxies.addresses["database"], b"hello") == b"HELLO"


def test_much_passes_without_being_kept(proxies: Proxies) -> None:
    text = b"abcdefgh" * 500_000
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        sender = threading.Thread(target=connection.sendall, args=(text,))
        sender.start()
        heard = 0
        while heard < len(text) and (part := connection.recv(65536)):
            assert part.isupper()
            heard += len(part)
        sender.join()
    assert heard == len(text)


def test_a_cut_breaks_and_refuses_and_leaves_others_alone(proxies: Proxies) -> None:
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        assert exchange(connection, b"a") == b"A"
        proxies.cut("database")
        assert is_broken(connection)
    with pytest.raises(ConnectionRefusedError):
        say(proxies.addresses["database"], b"c")
    assert say(proxies.addresses["other"], b"d") == b"D"
    proxies.cut("database")  # twice is once
    proxies.restore("database")
    assert say(proxies.addresses["database"], b"e") == b"E"


def test_a_drop_resets_and_lets_in_again(proxies: Proxies) -> None:
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        assert exchange(connection, b"a") == b"A"
        proxies.drop("database")
        assert is_broken(connection)
    assert say(proxies.addresses["database"], b"b") == b"B"


def test_a_turn_resets_and_leads_there_from_now_on(proxies: Proxies, echo: Echo) -> None:
    other = Echo()
    try:
        with socket.create_connection(proxies.addresses["database"], 5) as connection:
            assert exchange(connection, b"a") == b"A"
            proxies.turn("database", other.address)
            assert is_broken(connection)
        proxies.cut("database")
        proxies.restore("database")
        assert say(proxies.addresses["database"], b"moved") == b"MOVED"
        assert (b"moved" in other.heard, b"moved" in echo.heard) == (True, False)
    finally:
        other.close()


def test_delayed_bytes_come_late_whole_and_in_order(proxies: Proxies) -> None:
    text = b"".join(b"%06d;" % n for n in range(100_000))
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        assert exchange(connection, b"a") == b"A"
        proxies.delay("database", 0.2)
        sender = threading.Thread(target=connection.sendall, args=(text,))
        began = time.monotonic()
        sender.start()
        heard = connection.recv(1)
        assert time.monotonic() - began >= 0.4  # 0.2 s each way
        proxies.restore("database")  # what is on its way is not overtaken by what comes now
        while len(heard) < len(text) and (part := connection.recv(65536)):
            heard += part
        sender.join()
    assert heard == text.upper()


def test_a_delayed_end_comes_after_what_was_sent_before_it(proxies: Proxies) -> None:
    proxies.delay("database", 0.05)
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        connection.sendall(b"end")
        heard = b""
        while part := connection.recv(100):
            heard += part
    assert heard == b"END"


def test_silent_answers_are_lost_and_their_connection_is_reset_at_the_end(proxies: Proxies, echo: Echo) -> None:
    with (
        socket.create_connection(proxies.addresses["database"], 5) as robbed,
        socket.create_connection(proxies.addresses["database"], 5) as idle,
    ):
        assert exchange(robbed, b"a") == b"A"
        assert exchange(idle, b"a") == b"A"
        proxies.silence("database", "answers")
        robbed.sendall(b"does it arrive?")
        echo.wait_for(b"does it arrive?")
        assert is_silent(robbed)
        proxies.restore("database")
        assert is_broken(robbed)
        assert exchange(idle, b"b") == b"B"


def test_silent_requests_do_not_arrive(proxies: Proxies, echo: Echo) -> None:
    proxies.silence("database", "requests")
    with socket.create_connection(proxies.addresses["database"], 5) as robbed:
        robbed.sendall(b"lost")
        assert is_silent(robbed)
        proxies.restore("database")
        assert is_broken(robbed)
    assert say(proxies.addresses["database"], b"c") == b"C"
    assert b"lost" not in echo.heard


def test_silence_hides_that_the_other_side_has_ended(proxies: Proxies, echo: Echo) -> None:
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        assert exchange(connection, b"a") == b"A"
        proxies.silence("database", "answers")
        connection.sendall(b"end")
        echo.wait_for(b"end")
        assert is_silent(connection)
        proxies.restore("database")
        assert is_broken(connection)


def test_a_server_that_is_not_there_shows_as_a_closed_connection() -> None:
    proxies = Proxies({"database": Address("127.0.0.1", 9)})
    with socket.create_connection(proxies.addresses["database"], 5) as connection:
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
    proxies.close()


def test_an_unknown_name_is_an_error(proxies: Proxies) -> None:
    with pytest.raises(OSError, match="unknown"):
        proxies.cut("broker")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://a:b@db.example:5433/x?sslmode=require", Address("db.example", 5433)),
        ("postgresql://db.example/x", Address("db.example", 5432)),
        ("kafka://127.0.0.1:19092", Address("127.0.0.1", 19092)),
        ("kafka://a:1,b:2", None),
        ("postgresql:///x?host=/run/postgresql", None),
        ("sqlite:////tmp/x.db", None),
    ],
)
def test_one_server_can_be_cut_off(url: str, address: Address | None) -> None:
    assert address_of(url) == address


def test_a_moved_url_keeps_everything_else() -> None:
    to = Address("127.0.0.1", 4000)
    assert moved("postgresql://a:p%40b@db.example:5433/x?sslmode=require", to) == (
        "postgresql://a:p%40b@127.0.0.1:4000/x?sslmode=require"
    )
    assert moved("kafka://127.0.0.1:19092?security.protocol=plaintext", to) == (
        "kafka://127.0.0.1:4000?security.protocol=plaintext"
    )
