"""scripts/services: what its output promises, without starting anything."""

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "services"
ELSEWHERE = {
    "BOTHENDS_TEST_POSTGRESQL_URL": "postgresql://elsewhere/db",
    "BOTHENDS_TEST_POSTGRESQL18_URL": "postgresql://elsewhere/db18?options=-c%20a&b",
    "BOTHENDS_TEST_KAFKA_URL": "kafka://elsewhere:9092",
    "BOTHENDS_TEST_KAFKA_PROXIED_URL": "kafka://elsewhere:9094",
}


@pytest.fixture
def services(tmp_path):
    def call(*arguments, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BOTHENDS_")}
        environment |= {"BOTHENDS_SERVICES_DIR": str(tmp_path / "state")} | variables
        return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)

    return call


def test_a_provided_service_is_left_alone_and_its_url_printed(services, tmp_path):
    done = services("up", **ELSEWHERE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("export ") == len(done.stdout.splitlines()) == len(ELSEWHERE)
    assert not any((tmp_path / "state" / name).exists() for name in ("postgresql", "postgresql18", "kafka"))


def test_the_shell_reads_back_what_up_printed(services):
    printed = services("up", **ELSEWHERE).stdout
    read = subprocess.run(["bash", "-c", f"{printed}\nenv"], env={}, capture_output=True, text=True, check=True).stdout
    assert set(read.splitlines()) >= {f"{name}={value}" for name, value in ELSEWHERE.items()}


def test_only_the_named_services_are_printed(services):
    done = services("up", "kafka", **ELSEWHERE)
    assert re.findall(r"^export (\w+)=", done.stdout, re.MULTILINE) == [
        "BOTHENDS_TEST_KAFKA_URL",
        "BOTHENDS_TEST_KAFKA_PROXIED_URL",
    ]


def test_the_cluster_is_kafka_with_three_nodes_and_has_one_url(services):
    cluster = {"BOTHENDS_TEST_KAFKA_CLUSTER_URL": "kafka://a:1,b:2,c:3"}
    done = services("up", "kafka", "--kafka-nodes", "3", **ELSEWHERE, **cluster)
    assert (done.returncode, done.stdout) == (0, "export BOTHENDS_TEST_KAFKA_CLUSTER_URL=kafka://a:1,b:2,c:3\n")
    rows = services("status", "kafka", "--kafka-nodes", "3").stdout.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [[f"kafka-{n}", "stopped"] for n in (1, 2, 3)]


def test_status_is_a_table_of_all_services_and_succeeds(services):
    done = services("status")
    assert done.returncode == 0
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:]] == [
        ["postgresql", "stopped"],
        ["postgresql18", "stopped"],
        ["kafka", "stopped"],
    ]


def test_an_unknown_name_is_wrong_use_and_lists_the_known_ones(services):
    done = services("up", "oracle")
    assert (done.returncode, done.stdout) == (2, "")
    assert "postgresql, postgresql18, kafka" in done.stderr


def test_a_taken_port_is_said_on_stderr_and_nothing_is_printed(services, request, kafka_url):
    """Our own Kafka holds the port; a second state folder must not take it for its own."""
    done = services("up", "kafka")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is taken by something else" in done.stderr
