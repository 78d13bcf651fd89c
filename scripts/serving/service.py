"""A service: what all have in common, and when one is started, left alone or started anew."""

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.machine import START_S, STATE, Unavailable, port_taken, say, wait_until


class Service(ABC):
    name: str
    ports: Sequence[int]
    urls: Mapping[str, str]

    @property
    def home(self) -> Path:
        return STATE / self.name

    @abstractmethod
    def configuration(self) -> str:
        """Everything that a running service must have been started with."""

    @abstractmethod
    def pid(self) -> int | None:
        """The process, if it is alive and ours."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether it can be worked with now."""

    @abstractmethod
    def install(self) -> None:
        """Get what is missing on this machine."""

    @abstractmethod
    def start(self) -> None:
        """Start it so that it outlives this script."""

    @abstractmethod
    def stop(self) -> None:
        """End it cleanly and wait for that."""

    def provided(self) -> dict[str, str]:
        """URLs that the environment gives for this service and that are not our own."""
        given = {name: os.environ[name] for name in self.urls if os.environ.get(name)}
        return {} if all(self.urls[name] == url for name, url in given.items()) else given

    def up(self) -> None:
        self.home.mkdir(mode=0o755, exist_ok=True)
        stamp = self.home / "configuration"
        current = stamp.exists() and stamp.read_text() == self.configuration()
        if self.pid() and current and wait_until(self.answers, 10):
            return
        if self.pid():
            say(f"{self.name}: restarting (it {'does not answer' if current else 'runs with other settings'})")
            self.stop()
        if busy := [port for port in self.ports if port_taken(port)]:
            raise Unavailable(f"port {busy[0]} is taken by something else; stop that, or set {next(iter(self.urls))}")
        self.install()
        say(f"{self.name}: starting")
        started = time.monotonic()
        self.start()
        if not wait_until(lambda: self.answers() or not self.pid(), START_S) or not self.answers():
            raise Unavailable(f"started, but does not answer; see {self.home / 'log'}")
        stamp.write_text(self.configuration())
        say(f"{self.name}: up after {time.monotonic() - started:.1f} s")

    def down(self, wipe: bool) -> None:
        if self.pid():
            say(f"{self.name}: stopping")
            self.stop()
        if wipe and self.home.exists():
            shutil.rmtree(self.home)
            say(f"{self.name}: its data is deleted")
