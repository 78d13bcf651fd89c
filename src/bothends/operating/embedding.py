"""Embedding: relay and workers inside an application's own process [A22]."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from bothends.errors import ConfigError
from bothends.telemetry import logs

if TYPE_CHECKING:
    from bothends.operating.crew import Crew
    from bothends.service import Service

__all__ = ["problems", "running"]

_crews: weakref.WeakKeyDictionary[Service, Crew] = weakref.WeakKeyDictionary()
READY_WITHIN_S = 60.0
_log = logs.get("embedding")


@contextlib.asynccontextmanager
async def running(service: Service, *, relay: bool = True, workers: bool = True) -> AsyncIterator[None]:
    """Runs the service's relay and workers on threads of this process, and its asynchronous handlers on the running
    loop. Ready on entry, drained on exit (within ``stop_timeout_s``); no signal handler is touched.

    Raises ConfigError for what can never work, and TimeoutError where it is not ready within a minute. What breaks later
    is logged and makes ``problems(service)`` say so: let the application's readiness ask it.
    """
    if not relay and not workers:
        raise ConfigError("running(relay=False, workers=False) has nothing to run")
    if service in _crews:
        raise ConfigError(f"service {service.name} is running in this process already; enter running() once")
    from bothends.operating.apps import of
    from bothends.operating.roles import Roles

    app = of(service)
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(changed.set)

    workers = workers and (bool(service.consumers) or not relay)
    timeout_s = app.settings[service.name].stop_timeout_s
    task = {"role": "both" if relay and workers else "relay" if relay else "work", "stop_timeout_s": timeout_s}
    async with Roles(app, loop).crew(task, tell) as crew:
        _crews[service] = crew
        crew.start()
        try:
            await asyncio.wait_for(_until_ready(crew, changed), READY_WITHIN_S)
            yield
        finally:
            del _crews[service]
            # In a thread of its own: asynchronous handlers finish on this loop meanwhile. A cancelled exit still drains.
            stopping = asyncio.ensure_future(asyncio.to_thread(crew.stop, timeout_s + 1.0))
            if not await _undisturbed(stopping):
                _log.warning("not drained in time: what was in hand is released", extra={"service": service.name})


async def _until_ready(crew: Crew, changed: asyncio.Event) -> None:
    while True:
        changed.clear()
        error = crew.first_error()
        if error is not None:
            raise error
        if crew.is_ready():
            return
        await changed.wait()


async def _undisturbed(future: asyncio.Future[bool]) -> bool:
    """Awaits to the end, then lets a cancellation that came meanwhile go on."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def problems(service: Service) -> list[str]:
    """Why the service that ``running`` runs here is not ready; empty: it is. For the application's readiness probe."""
    crew = _crews.get(service)
    return [f"service {service.name} is not running in this process"] if crew is None else crew.problems()
