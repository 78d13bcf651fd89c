"""Keys as people write and read them [A20]: UTF-8 text, or ``base64:...`` for bytes that are none."""

from __future__ import annotations

import base64
import binascii

from bothends.errors import ConfigError

__all__ = ["parse", "shown"]

_PREFIX = "base64:"


def shown(key: bytes | memoryview | None) -> str | None:
    """``key`` as text that ``parse`` reads back to the same bytes."""
    if key is None:
        return None
    key = bytes(key)
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if (text or not key) and text.isprintable() and not text.startswith(_PREFIX):
        return text
    return _PREFIX + base64.b64encode(key).decode()


def parse(text: str) -> bytes:
    """The bytes of a key as typed. ConfigError for broken base64."""
    if not text.startswith(_PREFIX):
        return text.encode("utf-8", "surrogateescape")  # as the shell gave it
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error as error:
        raise ConfigError(f"{text!r} is not base64 ({error})") from error
