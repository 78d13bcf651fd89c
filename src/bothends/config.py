"""Config: finds each setting's value and remembers where it came from [A18].

flag > ``BOTHENDS_<SERVICE>_X`` > ``BOTHENDS_X`` > code > TOML > default; each variable also as ``X_FILE``. Reading
happens when ``resolve`` is called (the first I/O of a process), never at import.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from bothends.errors import ConfigError
from bothends.settings import DECLARED, Declared, Settings, Source
from bothends.urls import mask, normal_broker, normal_database

__all__ = [
    "Configured", "app_name", "need_broker", "need_database", "need_source", "read_toml", "relay_source", "resolve",
    "resolve_all", "shown", "unknown_variables",
]

_FILE_MAX = 64 * 1024
_OTHER_VARIABLES = {"BOTHENDS_APP"}
_NORMAL = {"database_url": normal_database, "broker_url": normal_broker}


class Configured(Protocol):
    """What has a name and settings of its own: a ``Service``. What it was given in code are attributes, by the names that
    ``DECLARED`` has for them."""

    @property
    def name(self) -> str: ...


def resolve(
    service: Configured, flags: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None,
    toml: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of one service. ``flags`` holds what the command line gave (None: not given); ``environ`` is the
    process's environment and ``toml`` the working directory's table unless given.

    Raises ConfigError for a value out of range, a variable given twice (plain and ``_FILE``), a file that cannot be
    read, and an unknown name in TOML.
    """
    environ = os.environ if environ is None else environ
    toml = read_toml() if toml is None else toml
    flags = flags or {}
    if unknown := set(flags) - set(DECLARED):
        raise ConfigError(f"there is no setting {sorted(unknown)[0]!r}")
    _check_toml(toml, service.name)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for row in DECLARED.values():
        in_code = getattr(service, row.from_code) if row.from_code is not None else None
        found = _find(row, service.name, in_code, flags, environ, toml)
        if found is None:
            origins[row.name] = "default"
            continue
        raw, origins[row.name] = found
        value = row.parse(raw, origins[row.name])
        values[row.name] = _NORMAL[row.name](value) if row.name in _NORMAL else value
    return Settings(service=service.name, origins=origins, **values)


def resolve_all(
    services: Sequence[Configured], flags: Mapping[str, object] | None = None, *, environ: Mapping[str, str] | None = None,
    toml: Mapping[str, Any] | None = None,
) -> dict[str, Settings]:
    """The settings of the services of one app, by name.

    Raises ConfigError where a general variable would move services onto one database (or broker) whose databases
    differ in code.
    """
    environ = os.environ if environ is None else environ
    toml = read_toml() if toml is None else toml
    found = {service.name: resolve(service, flags, environ=environ, toml=toml) for service in services}
    for row in DECLARED.values():
        if row.from_code is None or row.name not in _NORMAL:
            continue
        general = f"BOTHENDS_{row.name.upper()}"
        meant = [s for s in services if found[s.name].origins[row.name].removesuffix("_FILE") == general]
        in_code = {getattr(s, row.from_code) for s in meant} - {None}
        if len(in_code) > 1:
            names = ", ".join(s.name for s in meant if getattr(s, row.from_code))
            own = " or ".join(_variable(s.name, row.name) for s in meant[:2])
            raise ConfigError(
                f"{general} is set, but the services {names} declare different values of {row.from_code}= in code; "
                f"set the variable of each service instead ({own}), or remove {general}"
            )
    return found


def relay_source(service: str, in_code: str | None) -> Source:
    """This one setting, for a program that only adds. Raises ConfigError as ``resolve`` does, for this setting alone."""
    row = DECLARED["relay_source"]
    found = _find(row, service, in_code, {}, os.environ, read_toml())
    return cast("Source", row.default if found is None else row.parse(*found))


def _find(
    row: Declared, service: str, in_code: object, flags: Mapping[str, object], environ: Mapping[str, str],
    toml: Mapping[str, Any],
) -> tuple[object, str] | None:
    if flags.get(row.name) is not None:
        return flags[row.name], row.option
    for name in (_variable(service, row.name), f"BOTHENDS_{row.name.upper()}"):
        if (found := _from_environment(name, environ)) is not None:
            return found
    if in_code is not None:
        return in_code, f"Service({service!r}, {row.from_code}=)"
    own = toml.get(service)
    if isinstance(own, Mapping) and row.name in own:
        return own[row.name], f"{toml.get('', 'TOML')} [{service}]"
    if row.name in toml:
        return toml[row.name], str(toml.get("", "TOML"))
    return None


def _variable(service: str, name: str) -> str:
    return f"BOTHENDS_{service.upper().replace('-', '_')}_{name.upper()}"


def _from_environment(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    plain, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if plain and path:
        raise ConfigError(f"{name} and {name}_FILE are both set; remove one")
    if plain:
        return plain, name
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_FILE_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}_FILE: cannot be read ({error}); name a text file that this user may read") from error
    if len(text) > _FILE_MAX:
        raise ConfigError(f"{name}_FILE: {path} is larger than 64 kB; it should hold one value")
    return text.strip(), f"{name}_FILE"


def read_toml(directory: Path | None = None) -> dict[str, Any]:
    """The table of ``bothends.toml``, else ``[tool.bothends]`` of ``pyproject.toml``, of the working directory; empty
    where there is neither. Its key ``""`` names the file."""
    directory = Path.cwd() if directory is None else directory
    for name, path in (("bothends.toml", ()), ("pyproject.toml", ("tool", "bothends"))):
        file = directory / name
        if not file.is_file():
            continue
        try:
            table: Any = tomllib.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from error
        for key in path:
            table = table.get(key, {}) if isinstance(table, dict) else {}
        if isinstance(table, dict) and table:
            return {"": name, **table}
    return {}


def _check_toml(toml: Mapping[str, Any], service: str) -> None:
    own = toml.get(service)
    for table, where in ((toml, ""), (own if isinstance(own, Mapping) else {}, f" [{service}]")):
        for name, value in table.items():
            if name in ("", "app") or name in DECLARED or isinstance(value, Mapping):
                continue
            raise ConfigError(f"{toml.get('', 'TOML')}{where}: there is no setting {name!r}{_perhaps(name)}")


def _perhaps(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), DECLARED, n=1)
    return f"; is it {close[0]!r}?" if close else "; `bothends config` lists them"


def unknown_variables(services: Iterable[Configured], environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables that begin like ours and set nothing: most often a slip of the pen."""
    environ = os.environ if environ is None else environ
    known = set(_OTHER_VARIABLES)
    for name in DECLARED:
        known.add(f"BOTHENDS_{name.upper()}")
        known.update(_variable(service.name, name) for service in services)
    known |= {f"{name}_FILE" for name in known}
    ours = (name for name in environ if name.startswith("BOTHENDS_") and not name.startswith("BOTHENDS_TEST_"))
    return sorted(name for name in ours if name not in known)


def app_name(given: str | None = None, *, environ: Mapping[str, str] | None = None) -> str:
    """APP: as given, else ``BOTHENDS_APP``, else ``app`` in TOML. Raises ConfigError where none names it."""
    environ = os.environ if environ is None else environ
    name = given or environ.get("BOTHENDS_APP") or read_toml().get("app")
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "no application is named: give APP (module or module:name), set BOTHENDS_APP, or write "
            '[tool.bothends] app = "module" in pyproject.toml'
        )
    return name


def need_database(settings: Settings) -> str:
    """The database's URL; ConfigError says how to set it."""
    return _need(settings, settings.database_url, "database_url", "postgresql://user@host/name")


def need_broker(settings: Settings) -> str:
    """The broker's URL; ConfigError says how to set it."""
    return _need(settings, settings.broker_url, "broker_url", "kafka://localhost:9092")


def need_source(settings: Settings, in_code: str | None = None) -> Source:
    """Where relays of this service's outbox read. ConfigError where its database has no log that they could, and where a
    flag says otherwise than the setting by which producers leave the table out."""
    source = cast("Source", settings.relay_source)
    flag = DECLARED["relay_source"].option
    told = source != "message" and settings.origins.get("relay_source") == flag
    if told and relay_source(settings.service, in_code) == "message":
        raise ConfigError(
            f"service {settings.service}: {flag} is {source}, but relay_source is message: what its producers add is in no "
            f"table, and nobody would read it. Leave {flag} out, or change the setting, for producers first"
        )
    if need_database(settings).startswith("postgresql://"):
        return source
    if source in ("wal", "message"):
        raise ConfigError(
            f"service {settings.service}: relay_source is {source} ({settings.origins.get('relay_source', 'default')}), but "
            f"only PostgreSQL has a log that relays can read: set it to auto or poll, or database_url to postgresql://..."
        )
    return "poll"


def _need(settings: Settings, value: str | None, name: str, example: str) -> str:
    if value is None:
        raise ConfigError(
            f"service {settings.service} has no {name}: set {_variable(settings.service, name)} or "
            f"BOTHENDS_{name.upper()} (for instance {example}), or give Service(..., {DECLARED[name].from_code}=)"
        )
    return value


def shown(settings: Settings) -> list[tuple[str, object, str]]:
    """(name, value, origin) of every setting, with secrets masked: for people, logs and ``--json``."""
    rows: list[tuple[str, object, str]] = []
    for row in DECLARED.values():
        value = getattr(settings, row.name)
        if row.secret and value is not None:
            value = mask(value)
        rows.append((row.name, value, settings.origins.get(row.name, "default")))
    return rows
