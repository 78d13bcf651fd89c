"""The gateway and its client, over real HTTP."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bothends import NOT_DONE, NotSent, Permanent
from bothends.demo import wallet as wallet_module
from bothends.demo.audit import Charge
from bothends.demo.gateway import Gateway, read_charges
from bothends.demo.wallet import Wallet


@contextmanager
def running(ledger: Path, **options: float) -> Iterator[Gateway]:
    gateway = Gateway(ledger, **{"late_every": 10**9, **options})  # type: ignore[arg-type]
    thread = threading.Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield gateway
    finally:
        gateway.shutdown()
        gateway.server_close()
        thread.join()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "charges.jsonl"


def test_a_key_charges_once_however_often_it_comes(ledger: Path) -> None:
    with running(ledger) as gateway:
        wallet = Wallet(gateway.url)
        receipts = {wallet.charge("charge-1", Decimal("15.30")) for _ in range(3)}
        assert len(receipts) == 1
        assert wallet.charge("charge-2", Decimal("15.30")) not in receipts
        assert read_charges(ledger) == [Charge("charge-1", Decimal("15.30")), Charge("charge-2", Decimal("15.30"))]


def test_a_key_charges_once_when_many_come_at_once(ledger: Path) -> None:
    with running(ledger) as gateway, ThreadPoolExecutor(16) as pool:
        receipts = list(pool.map(lambda _: Wallet(gateway.url).charge("charge-1", Decimal(1)), range(50)))
    assert len(set(receipts)) == 1
    assert len(read_charges(ledger)) == 1


def test_a_key_with_another_amount_is_refused(ledger: Path) -> None:
    with running(ledger) as gateway:
        Wallet(gateway.url).charge("charge-1", Decimal(1))
        with pytest.raises(Permanent, match="used for 1 before"):
            Wallet(gateway.url).charge("charge-1", Decimal(2))
    assert read_charges(ledger) == [Charge("charge-1", Decimal(1))]


def test_what_became_of_a_charge_can_be_found_out(ledger: Path) -> None:
    with running(ledger) as gateway:
        wallet = Wallet(gateway.url)
        key = "refund-C5/36 379?é%41\u4e00"
        assert wallet.find(key) is NOT_DONE
        receipt = wallet.charge(key, Decimal(1))
        assert wallet.find(key) == receipt
        assert read_charges(ledger)[0].key == key


def test_a_late_answer_comes_after_the_charge(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wallet_module, "TIMEOUT_S", 0.2)
    with running(ledger, late_every=1, late_s=30) as gateway:
        wallet = Wallet(gateway.url)
        with pytest.raises(TimeoutError):
            wallet.charge("charge-1", Decimal(1))
        assert read_charges(ledger) == [Charge("charge-1", Decimal(1))]
        receipt = wallet.find("charge-1")
        assert receipt == wallet.charge("charge-1", Decimal(1))  # only the first answer is late
    assert len(read_charges(ledger)) == 1


def test_nobody_there_means_nothing_was_sent() -> None:
    with pytest.raises(NotSent):
        Wallet("http://127.0.0.1:9").charge("charge-1", Decimal(1))


@pytest.mark.parametrize(
    ("path", "key", "body", "status"),
    [
        ("/charges", "", b'{"amount":"1"}', 400),
        ("/charges", "k" * 301, b'{"amount":"1"}', 400),
        ("/other", "k", b'{"amount":"1"}', 400),
        ("/charges", "k", b"{}", 400),
        ("/charges", "k", b"not json", 400),
        ("/charges", "k", b'{"amount":"NaN"}', 400),
        ("/charges", "k", b'{"amount":"0"}', 400),
        ("/charges", "k", b'{"amount":"-1"}', 400),
        ("/charges", "k", b'{"amount":[1]}', 400),
        ("/charges", "k", b"x" * 70_000, 413),
    ],
)
def test_what_is_no_charge_is_refused(ledger: Path, path: str, key: str, body: bytes, status: int) -> None:
    with running(ledger) as gateway:
        parts = urlsplit(gateway.url)
        connection = HTTPConnection(str(parts.hostname), parts.port, timeout=5)
        connection.request("POST", path, body, {"Idempotency-Key": key} if key else {})
        response = connection.getresponse()
        assert response.status == status
        assert "error" in json.loads(response.read())
        connection.close()
    assert read_charges(ledger) == []


def test_it_is_a_process_that_ends_with_its_parent(ledger: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "bothends.demo.gateway", str(ledger)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    wallet = Wallet(process.stdout.readline().strip())
    wallet.charge("charge-1", Decimal("2.50"))
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert read_charges(ledger) == [Charge("charge-1", Decimal("2.50"))]
