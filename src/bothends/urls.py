"""URLs of databases and brokers: what is accepted, one spelling for each, and how they are shown."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode, urlsplit

from bothends.errors import ConfigError

__all__ = ["BROKERS", "DATABASES", "mask", "normal_broker", "normal_database"]

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


def mask(url: str) -> str:
    """``url`` as it may be shown and logged: passwords, and query parameters that sound secret, are ``***``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    netloc = parts.netloc
    if "@" in netloc:
        user, _, host = netloc.rpartition("@")
        name, colon, _password = user.partition(":")
        netloc = f"{name}{':***' if colon else ''}@{host}"
    query = parts.query
    if query:
        pairs = [(k, "***" if _SECRET.search(k) else v) for k, v in parse_qsl(query, keep_blank_values=True)]
        query = urlencode(pairs, safe="*/:,")
    if "://" not in url:
        return "***" if "@" in url or "=" in url else url
    rest = f"{netloc}{parts.path}" + (f"?{query}" if query else "") + (f"#{parts.fragment}" if parts.fragment else "")
    return f"{parts.scheme}://{rest}"
