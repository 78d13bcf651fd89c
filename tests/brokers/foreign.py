"""A producer that is not careful: header names as any bytes, written by librdkafka itself."""

import ctypes

from confluent_kafka import cimpl

_END, _TOPIC, _VALUE, _KEY, _FLAGS, _HEADERS = 0, 1, 4, 5, 7, 10
_COPY = 2
_PRODUCER = 0


def produce(servers: str, topic: str, key: bytes, value: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    library = ctypes.CDLL(cimpl.__file__)
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_headers_new"):
        getattr(library, name).restype = pointer
    problem = ctypes.create_string_buffer(512)
    conf = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(conf, b"bootstrap.servers", servers.encode(), problem, size(512))
    client = pointer(library.rd_kafka_new(_PRODUCER, conf, problem, size(512)))
    packed = pointer(library.rd_kafka_headers_new(size(len(headers))))
    for name_bytes, data in headers:
        library.rd_kafka_header_add(packed, name_bytes, ctypes.c_ssize_t(len(name_bytes)), data, ctypes.c_ssize_t(len(data)))
    refused = library.rd_kafka_producev(
        client, number(_TOPIC), topic.encode(), number(_VALUE), value, size(len(value)), number(_KEY), key, size(len(key)),
        number(_FLAGS), number(_COPY), number(_HEADERS), packed, number(_END),
    )
    assert refused == 0
    assert library.rd_kafka_flush(client, 10_000) == 0
    library.rd_kafka_destroy(client)
