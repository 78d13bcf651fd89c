"""Apps: from the name of a module to the services that it declares [A16][A20]."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from bothends.config import need_database, need_source, resolve_all
from bothends.errors import ConfigError
from bothends.service import Consumer, Service
from bothends.settings import Settings, Source

__all__ = ["App", "OutboxOf", "load", "of"]


@dataclass(frozen=True, slots=True)
class OutboxOf:
    """One outbox: a database and a schema, and the services that write to it [A19]."""

    url: str
    schema: str
    services: tuple[Service, ...]
    settings: Settings
    source: Source
    """Where its relays read."""

    @property
    def name(self) -> str:
        return "+".join(service.name for service in self.services)


@dataclass(frozen=True, slots=True)
class App:
    """The services of one APP, with the settings that hold for each."""

    name: str
    services: tuple[Service, ...]
    settings: Mapping[str, Settings]

    def service(self, name: str | None) -> Service:
        """The service of that name; without a name, the only one. ConfigError lists them otherwise."""
        names = ", ".join(service.name for service in self.services)
        if name is None:
            if len(self.services) == 1:
                return self.services[0]
            raise ConfigError(f"{self.name} has several services; say which with --service: {names}")
        for service in self.services:
            if service.name == name:
                return service
        raise ConfigError(f"{self.name} has no service {name!r}; it has {names}")

    def outboxes(self, service: str | None = None) -> list[OutboxOf]:
        """Each distinct outbox, in order of declaration. ConfigError for services of one outbox that differ in
        ``publish`` or ``relay_source``, since one relay serves them all, and for a source that the database has not."""
        grouped: dict[tuple[str, str], list[Service]] = {}
        chosen = self.services if service is None else (self.service(service),)
        for one in chosen:
            grouped.setdefault((need_database(self.settings[one.name]), one.schema), []).append(one)
        found = []
        for (url, schema), services in grouped.items():
            if any(one.publish != services[0].publish for one in services):
                names = ", ".join(one.name for one in services)
                raise ConfigError(f"the services {names} share one outbox but differ in publish=; give them one policy")
            sources = {need_source(self.settings[one.name], one.relay_source) for one in services}
            if len(sources) > 1:
                names = ", ".join(one.name for one in services)
                raise ConfigError(
                    f"the services {names} share one outbox but differ in relay_source ({', '.join(sorted(sources))}); give "
                    f"them one"
                )
            found.append(OutboxOf(url, schema, tuple(services), self.settings[services[0].name], sources.pop()))
        return found

    def consumers(self, service: str | None = None, names: Sequence[str] = ()) -> list[Consumer]:
        """The consumers of ``service`` (None: of all), narrowed to ``names`` (``stock``, ``inventory.stock``, or with the
        group prefix, as commands print it).

        Raises ConfigError for a name that is none, and where nothing is left.
        """
        chosen = self.services if service is None else (self.service(service),)
        every = [consumer for one in chosen for consumer in one.consumers.values()]
        if unknown := [n for n in names if not any(n in self._called(c) for c in every)]:
            there = ", ".join(c.name for c in every) or "none"
            raise ConfigError(f"{self.name} has no consumer {unknown[0]!r}; there is {there}")
        found = [c for c in every if not names or not self._called(c).isdisjoint(names)]
        if not found:
            raise ConfigError(
                f"{self.name} has no consumer: a worker would have nothing to do. Declare one with "
                f"service.consumer(...), and name the modules that register handlers in Service(..., include=[...])"
            )
        for consumer in found:
            if not consumer.handlers:
                raise ConfigError(
                    f"consumer {consumer.name} has no handler; is the module that registers it in include= of "
                    f"its service?"
                )
        return found

    def check(self, *, service: str | None, relays: bool, workers: bool, consumers: Sequence[str]) -> bool:
        """Whether workers have something to do. Raises ConfigError where relays (or workers) are wanted and cannot be."""
        if relays:
            self.outboxes(service)
        chosen = self.services if service is None else (self.service(service),)
        if not workers or (relays and not consumers and not any(one.consumers for one in chosen)):
            return False
        self.consumers(service, consumers)
        return True

    def _called(self, consumer: Consumer) -> set[str]:
        prefix = self.settings[consumer.service.name].group_prefix
        return {consumer.short_name, consumer.name, prefix + consumer.name}


def load(name: str, flags: Mapping[str, object] | None = None) -> App:
    """Imports ``module`` (all its Service objects) or ``module:name`` (that one), and every module that the services
    name in ``include``. The working directory is importable.

    Raises ConfigError where the module is not there or declares no service. Errors inside of it pass through.
    """
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module_name, _, attribute = name.partition(":")
    module = _imported(module_name, f"APP {name!r}")
    if attribute:
        found = getattr(module, attribute, None)
        if not isinstance(found, Service):
            raise ConfigError(f"{module_name} has no Service named {attribute!r}; {_there(module)}")
        services = [found]
    else:
        services = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Service)))
        if not services:
            raise ConfigError(
                f"{module_name} declares no Service; write orders = Service('orders') in it, or name another module"
            )
    names = [service.name for service in services]
    if twice := {n for n in names if names.count(n) > 1}:
        raise ConfigError(f"{name} has two services named {sorted(twice)[0]!r}; a service's name is its own")
    for service in services:
        for included in service.include:
            _imported(included, f"include of service {service.name}")
    return _told(App(name, tuple(services), resolve_all(services, flags)))


def of(service: Service) -> App:
    """The app of one service that is at hand already, for embedding."""
    for included in service.include:
        _imported(included, f"include of service {service.name}")
    return _told(App(service.name, (service,), resolve_all((service,))))


def _told(app: App) -> App:
    """What handlers add by ``outbox.add`` goes where this process's settings say, its flags included."""
    for service in app.services:
        service.outbox.tell(cast("Source", app.settings[service.name].relay_source))
    return app


def _imported(name: str, what: str) -> ModuleType:
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"{what}: {name!r} is not a module's name; write package.module or package.module:service")
    try:
        return importlib.import_module(name)
    except SystemExit as error:
        raise ConfigError(
            f"{what}: the module {name!r} ends the process when it is imported, by sys.exit({error.code!r}); put that under "
            f"if __name__ == '__main__'"
        ) from error
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module is there, and what is missing is one of its own imports
        where = f"looked in {Path.cwd()} and the installed packages"
        raise ConfigError(f"{what}: there is no module {name!r} ({where})") from error


def _there(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Service)]
    return f"it has {', '.join(names)}" if names else "it has none"
