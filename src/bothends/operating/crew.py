"""Crew: the relays and workers of one process, each in threads of its own, started, watched and stopped together.

A child process of the supervisor runs one, and so does ``service.running()`` inside an application. What can never work
as configured (ConfigError) and what broke unexpectedly are told apart: the first must not be tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bothends.errors import ConfigError, PositionLost
from bothends.telemetry import logs

__all__ = ["Crew", "Member"]

_log = logs.get("crew")


@dataclass(eq=False)
class Member:
    """One relay or one worker. ``run(stop, ready)`` works until ``stop`` is set and what is in hand is drained, and sets
    ``ready`` once it has begun."""

    name: str
    run: Callable[[threading.Event, threading.Event], None]
    helps: bool = False
    """It serves the others, and is no reason to go on by itself."""
    ready: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    thread: threading.Thread | None = None
    ended: bool = False
    """Its ``run`` has returned or raised."""


class Crew:
    """``changed`` is called, from any thread, when a member is ready or has ended."""

    def __init__(
        self, members: Sequence[Member], changed: Callable[[], None] = lambda: None,
        describes: Mapping[str, object] | None = None,
    ) -> None:
        self.members = list(members)
        self.describes = dict(describes or {})
        """What the ready line says of it."""
        self.stop_event = threading.Event()
        self._changed = changed

    def start(self) -> None:
        for member in self.members:
            member.thread = threading.Thread(
                target=self._work, args=(member,), name=f"bothends-{member.name}"[:60], daemon=True)
            member.thread.start()
            threading.Thread(target=self._await_ready, args=(member,), name="bothends-ready", daemon=True).start()

    def _await_ready(self, member: Member) -> None:
        while not member.ready.wait(1.0):
            if member.ended:
                return
        self._changed()

    def _work(self, member: Member) -> None:
        try:
            member.run(self.stop_event, member.ready)
        except BaseException as error:
            member.error = error
            if isinstance(error, ConfigError | PositionLost):
                _log.error("stopped: %s", error, extra={"member": member.name})
            else:
                _log.critical("broke", exc_info=error, extra={"member": member.name})
        finally:
            member.ended = True
            self._changed()

    def is_ready(self) -> bool:
        return all(member.ready.is_set() or member.ended for member in self.members)

    def is_alive(self) -> bool:
        """No member has ended unasked, unless for good reason (its error is the operator's to mend)."""
        return self.stop_event.is_set() or not any(
            m.ended and not isinstance(m.error, ConfigError | PositionLost) for m in self.members)

    def has_work(self) -> bool:
        """Some relay or worker is still at work."""
        return any(not member.ended and not member.helps for member in self.members)

    def problems(self) -> list[str]:
        """Why this process is not ready, one line each; empty: it is."""
        found = []
        for member in self.members:
            if member.error is not None:
                found.append(f"{member.name}: {type(member.error).__name__}: {member.error}")
            elif member.ended and not self.stop_event.is_set():
                found.append(f"{member.name} has ended")
            elif not member.ready.is_set():
                found.append(f"{member.name} is not ready yet")
        return found

    def first_error(self) -> BaseException | None:
        """What broke; a ConfigError before anything else."""
        errors = [member.error for member in self.members if member.error is not None]
        return next((e for e in errors if isinstance(e, ConfigError)), errors[0] if errors else None)

    def stop(self, timeout_s: float) -> bool:
        """Drains; False where something is still at work after ``timeout_s``."""
        self.stop_event.set()
        deadline = time.monotonic() + timeout_s
        for member in self.members:
            if member.thread is not None:
                member.thread.join(max(0.0, deadline - time.monotonic()))
        return all(member.ended for member in self.members)
