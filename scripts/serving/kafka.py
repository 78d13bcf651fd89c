"""Apache Kafka from its Maven artifacts: one node, and a cluster of three."""

import contextlib
import hashlib
import os
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from serving.machine import CACHE, HOST, SCRIPTS, STOP_S, Unavailable, alive, ask, read_pid, run, say, wait_until
from serving.service import Service

_FETCHING = threading.Lock()


class Kafka(Service):
    """One Apache Kafka node in KRaft mode. The second listener advertises a port where a test's proxy listens."""

    name = "kafka"
    ports: Sequence[int] = (19092, 19093, 19094)
    client_ports: Sequence[int] = (19092, 19094)
    memory: Sequence[str] = ("-Xms256m", "-Xmx768m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
    cluster_id = "Ym90aGVuZHMtdGVzdHMtMQ"
    urls: Mapping[str, str] = MappingProxyType({
        "BOTHENDS_TEST_KAFKA_URL": f"kafka://{HOST}:19092",
        "BOTHENDS_TEST_KAFKA_PROXIED_URL": f"kafka://{HOST}:19094",
    })  # fmt: skip

    def jars(self) -> Path:
        digest = hashlib.sha256((SCRIPTS / "kafka" / "pom.xml").read_bytes()).hexdigest()[:12]
        return CACHE / "kafka" / digest

    def install(self) -> None:
        for program in ("java", "mvn"):
            if not shutil.which(program):
                raise Unavailable(
                    f"`{program}` is not installed (Java 17 and Maven are needed): "
                    f"use `docker compose up -d --wait kafka`, or set {next(iter(self.urls))}"
                )
        with _FETCHING:
            self._fetch()

    def _fetch(self) -> None:
        if self.jars().exists():
            return
        say("kafka: fetching Apache Kafka with Maven")
        partial = self.jars().with_name(f"partial.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies"
        try:
            run(["mvn", "-q", "-B", "-f", SCRIPTS / "kafka" / "pom.xml", goal,
                 "-DincludeScope=runtime", f"-DoutputDirectory={partial}"])  # fmt: skip
            partial.rename(self.jars())
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def configuration(self) -> str:
        return (SCRIPTS / "kafka" / "server.properties").read_text() + f"log.dirs={self.home / 'data'}\n"

    def command(self, main: str, *arguments: str | Path) -> list[str | Path]:
        return [
            "java", *self.memory, "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.coordinator.group=info",  # says why a group is rebalanced
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS", f"-Dbothends.service={self.home}",
            "-cp", f"{self.jars()}/*", main, *arguments,
        ]  # fmt: skip

    def start(self) -> None:
        properties = self.home / "server.properties"
        properties.write_text(self.configuration())
        if not (self.home / "data" / "meta.properties").exists():
            tool = self.command("kafka.tools.StorageTool")
            run([*tool, "format", "--ignore-formatted", "-t", self.cluster_id, "-c", properties])
        with (self.home / "log").open("ab") as log:
            process = subprocess.Popen(
                self.command("kafka.Kafka", properties), cwd=self.home, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        (self.home / "pid").write_text(f"{process.pid}\n")
        process.returncode = 0  # it outlives this script; don't warn about it

    def pid(self) -> int | None:
        pid = read_pid(self.home / "pid")
        return pid if alive(pid, f"-Dbothends.service={self.home}") else None

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if pid := self.pid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
                    os.kill(pid, sign)
            if wait_until(lambda: not self.pid(), STOP_S):
                return
        raise Unavailable(f"process {self.pid()} does not end")

    def answers(self) -> bool:
        """Whether the metadata (request 3, version 1, no topics) lists a broker, on every listener for clients."""
        body = struct.pack("!hhih", 3, 1, 1, 3) + b"ask" + struct.pack("!i", 0)
        request = struct.pack("!i", len(body)) + body
        answers = [ask(port, request, 12) for port in self.client_ports]
        return all(len(answer) == 12 and struct.unpack("!iii", answer)[2] > 0 for answer in answers)


class KafkaNode(Kafka):
    """One of three nodes of a cluster that is started on demand, for what happens when a leader dies."""

    client_ports: Sequence[int]
    memory = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC")
    cluster_id = "Ym90aGVuZHMtdGVzdHMtMw"

    def __init__(self, number: int) -> None:
        self.name, self.number = f"kafka-{number}", number
        self.client_ports, self.ports = (19092 + 100 * number,), (19092 + 100 * number, 19093 + 100 * number)
        listeners = ",".join(f"{HOST}:{19092 + 100 * n}" for n in NODE_NUMBERS)
        self.urls = {"BOTHENDS_TEST_KAFKA_CLUSTER_URL": f"kafka://{listeners}"}

    def configuration(self) -> str:
        client, controller = self.ports
        return (
            super().configuration() + (SCRIPTS / "kafka" / "cluster.properties").read_text()
            + f"node.id={self.number}\n"
            + f"controller.quorum.voters={','.join(f'{n}@{HOST}:{19093 + 100 * n}' for n in NODE_NUMBERS)}\n"
            + f"listeners=PLAINTEXT://{HOST}:{client},CONTROLLER://{HOST}:{controller}\n"
            + f"advertised.listeners=PLAINTEXT://{HOST}:{client}\n"
        )


NODE_NUMBERS = (1, 2, 3)
NODES = tuple(KafkaNode(number) for number in NODE_NUMBERS)
