"""Records out of the client's messages, byte for byte.

The client decodes header names as strict UTF-8 and loses a name that is not: ``headers()`` raises, and leaves tuples
with a hole in place of the name. Such a record is fetched once more by librdkafka itself, where names are bytes.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any

from confluent_kafka import Message, cimpl

from bothends.brokers.kafka.client import LOG
from bothends.message import Headers, Origin, Record

__all__ = ["origin_of", "raw_headers", "record_of"]

_FETCH_MS = 5_000
_HEADERS_MAX = 10_000
_CONSUMER = 1
_headers_of = operator.methodcaller("headers")
"""Called from C, where a result that comes with an exception is noticed. The interpreter itself trusts a method that it
has called often, goes on with the broken tuples, and meets the exception (or a null pointer) some steps later."""


def origin_of(message: Message) -> Origin:
    topic, number, offset = message.topic(), message.partition(), message.offset()
    if topic is None or number is None or offset is None:
        raise ValueError(f"a message without a place: {message.error()}")
    return Origin(topic, number, offset)


def record_of(message: Message, settings: dict[str, Any]) -> Record:
    """``settings`` are those of the connection, for the rare second look at a record."""
    origin = origin_of(message)
    try:
        found: Any = _headers_of(message)  # its stub allows for what only a producer may give
        headers: Headers = [(name, value or b"") for name, value in found] if found else ()
    except (SystemError, UnicodeDecodeError):  # a second call would return the broken tuples, and end the process
        headers = raw_headers(origin, settings)
    kind, timestamp = message.timestamp()
    return Record(origin, message.key(), message.value(), headers, timestamp if kind else -1)


class _RawMessage(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = (
        ("err", ctypes.c_int), ("rkt", ctypes.c_void_p), ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p), ("len", ctypes.c_size_t), ("key", ctypes.c_void_p), ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64), ("private", ctypes.c_void_p),
    )


def _library() -> ctypes.CDLL:
    """The librdkafka that the client itself runs on."""
    library = ctypes.CDLL(cimpl.__file__)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, *arguments in (
        ("rd_kafka_conf_new", pointer),
        ("rd_kafka_conf_set", ctypes.c_int, pointer, text, text, text, ctypes.c_size_t),
        ("rd_kafka_new", pointer, ctypes.c_int, pointer, text, ctypes.c_size_t),
        ("rd_kafka_topic_new", pointer, pointer, text, pointer),
        ("rd_kafka_consume_start", ctypes.c_int, pointer, ctypes.c_int32, ctypes.c_int64),
        ("rd_kafka_consume", ctypes.POINTER(_RawMessage), pointer, ctypes.c_int32, ctypes.c_int),
        ("rd_kafka_consume_stop", ctypes.c_int, pointer, ctypes.c_int32),
        ("rd_kafka_message_headers", ctypes.c_int, ctypes.POINTER(_RawMessage), ctypes.POINTER(pointer)),
        ("rd_kafka_header_get_all", ctypes.c_int, pointer, ctypes.c_size_t, ctypes.POINTER(text),
         ctypes.POINTER(pointer), ctypes.POINTER(ctypes.c_size_t)),
        ("rd_kafka_message_destroy", None, ctypes.POINTER(_RawMessage)),
        ("rd_kafka_topic_destroy", None, pointer),
        ("rd_kafka_destroy", None, pointer),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _read_headers(library: ctypes.CDLL, message: Any) -> list[tuple[str, bytes]]:
    headers = ctypes.c_void_p()
    if library.rd_kafka_message_headers(message, ctypes.byref(headers)):
        return []
    found = []
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    for index in range(_HEADERS_MAX):
        if library.rd_kafka_header_get_all(headers, index, ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)):
            break
        data = ctypes.string_at(value.value, size.value) if value.value else b""
        found.append(((name.value or b"").decode("utf-8", "surrogateescape"), data))
    return found


def raw_headers(origin: Origin, settings: dict[str, Any]) -> list[tuple[str, bytes]]:
    """The headers of one record as bytes that no client has decoded. Takes a connection of its own, and at most some
    seconds. Raises OSError where the record cannot be read again."""
    library = _library()
    problem = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    for name, value in (settings | {"auto.offset.reset": "error", "log_level": 0}).items():
        if isinstance(value, str | int | float):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            library.rd_kafka_conf_set(conf, name.encode(), text.encode(), problem, len(problem))
    client = library.rd_kafka_new(_CONSUMER, conf, problem, len(problem))
    if not client:
        raise OSError(f"cannot read {origin} again: {problem.value.decode(errors='replace')}")
    topic = library.rd_kafka_topic_new(client, origin.topic.encode(), None)
    try:
        library.rd_kafka_consume_start(topic, origin.partition, origin.offset)
        message = library.rd_kafka_consume(topic, origin.partition, _FETCH_MS)
        try:
            if not message or message.contents.err or message.contents.offset != origin.offset:
                raise OSError(f"cannot read {origin} again")
            headers = _read_headers(library, message)
        finally:
            if message:
                library.rd_kafka_message_destroy(message)
            library.rd_kafka_consume_stop(topic, origin.partition)
    finally:
        library.rd_kafka_topic_destroy(topic)
        library.rd_kafka_destroy(client)
    LOG.debug("%s has a header name that is not UTF-8", origin)
    return headers
