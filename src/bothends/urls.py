"""URLs of databases and brokers: what is accepted, one spelling for each, and how they are shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote, urlencode

from bothends.errors import ConfigError

__all__ = ["BROKERS", "DATABASES", "addresses", "mask", "normal_broker", "normal_database", "parts_of"]

DATABASES = ("postgresql", "sqlite")
BROKERS = ("kafka", "embedded", "memory")
_SCHEME = re.compile(r"([a-z][a-z0-9]*)(?:\+[a-z0-9_]+)?://", re.IGNORECASE)
_SECRET = re.compile(r"pass|secret|token|credential|api_?key|sasl\.jaas|private", re.IGNORECASE)


def _split(url: str, known: tuple[str, ...], what: str, example: str) -> tuple[str, str]:
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    scheme = "postgresql" if scheme == "postgres" else scheme
    if match is None or scheme not in known:
        names = ", ".join(f"{name}://" for name in known)
        raise ConfigError(f"{what} must begin with one of {names}, for instance {example}; it is {mask(url)!r}")
    return scheme, url[match.end():]


def normal_database(url: str) -> str:
    """``url`` with a plain scheme: ``postgres://`` and ``postgresql+asyncpg://`` become ``postgresql://``.

    Raises ConfigError for other schemes, with any password masked.
    """
    scheme, rest = _split(url, DATABASES, "the database URL", "postgresql://user@host/name or sqlite:///shop.db")
    return f"{scheme}://{rest}"


def normal_broker(url: str) -> str:
    """``url`` with its scheme in lower case. Raises ConfigError for a scheme that is no broker's."""
    scheme, rest = _split(url, BROKERS, "the broker URL", "kafka://localhost:9092 or embedded:///events.db")
    return f"{scheme}://{rest}"


def parts_of(url: str) -> tuple[str, str, str, str]:
    """User and password, hosts and ports, path, and query of ``url``, as libpq takes it apart: what stands before an ``@`` may
    have any character but a slash, and ``#`` is one like others. Where the ``@`` comes later, it ends what is meant for a
    password all the same."""
    rest = url.partition("://")[2]
    before = rest.partition("/")[0]
    if not url.startswith("postgres"):
        before = before.partition("?")[0]
    within = before if "@" in before or ":" not in before else rest.partition("?")[0]
    user, at, _ = within.rpartition("@")
    place, _, query = rest[len(user + at):].partition("?")
    hosts, slash, path = place.partition("/")
    return user, hosts, slash + path, query


def addresses(hosts: str) -> list[tuple[str, str]]:
    """Host and port of each of ``a:5432,b,[::1]:5433``; the port is empty where there is none."""
    found = []
    for one in hosts.split(","):
        bracket, closing, rest = one.partition("]")
        host, port = (bracket.removeprefix("["), rest.removeprefix(":")) if closing else one.partition(":")[::2]
        found.append((unquote(host).lower(), port))
    return found


def mask(url: str) -> str:
    """``url`` as it may be shown and logged: passwords, and query parameters that sound secret, are ``***``."""
    if "://" not in url:
        return "***" if "@" in url or "=" in url else url
    if url.count("[") != url.count("]"):
        return "***"
    user, hosts, path, query = parts_of(url)
    name, colon, _password = user.partition(":")
    shown = f"{name}{':***' if colon else ''}@" if user else ""
    if query:
        pairs = [(k, "***" if _SECRET.search(k) else v) for k, v in parse_qsl(query, keep_blank_values=True)]
        query = "?" + urlencode(pairs, safe="*/:,")
    return f"{url.partition('://')[0].lower()}://{shown}{hosts}{path}{query}"
