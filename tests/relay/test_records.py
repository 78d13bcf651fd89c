from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bothends.codecs.cloudevents import pack_attributes, pack_headers, to_headers
from bothends.relay.records import judged, outgoing

texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)
keys = st.none() | st.binary(max_size=12) | texts.map(str.encode)
names = st.sampled_from(["subject", "correlationid", "causationid", "traceparent", "other"])


def row(
    id: str, source: str, type: str, key: bytes | None, content: str | None, version: int, attributes: dict[str, str],
    headers: list[tuple[str, bytes]],
) -> tuple[Any, ...]:
    return (
        0, 1, 0, id.encode(), source, type, "topic", key, b"body", content, b"2026-01-01T00:00:00Z", version,
        pack_attributes(attributes), pack_headers(headers),
    )


@given(
    texts, texts, texts, keys, st.none() | texts, st.integers(1, 2**31 - 1), st.dictionaries(names, texts),
    st.lists(st.tuples(texts, st.binary(max_size=8)), max_size=4),
)
def test_the_hot_path_makes_what_the_codec_makes(
    id: str, source: str, type: str, key: bytes | None, content: str | None, version: int, attributes: dict[str, str],
    headers: list[tuple[str, bytes]],
) -> None:
    (record,) = outgoing([row(id, source, type, key, content, version, attributes, headers)])
    assert record.headers == to_headers(
        id, source, type, "2026-01-01T00:00:00Z", version, key, content, pack_attributes(attributes),
        pack_headers(headers),
    )
    assert (record.topic, record.key, record.value) == ("topic", key, b"body")


def test_caches_are_bounded() -> None:
    from bothends.relay import records

    outgoing([row("i", f"source {n}", f"type {n}", None, None, n + 1, {}, []) for n in range(3000)])
    assert len(records._sources) <= records._CACHED_MAX
    assert len(records._types) <= records._CACHED_MAX


def test_rows_that_cannot_be_read_are_told_apart() -> None:
    good = row("1", "s", "t", b"k", None, 1, {}, [])
    broken = [*row("2", "s", "t", b"k", None, 1, {}, [])]
    broken[12] = "{no json"
    found = judged([good, tuple(broken), good])
    assert [row[3] for row, _ in found] == [b"1", b"2", b"1"]
    assert [bool(error) for _, error in found] == [False, True, False]
    assert "ValidationError" in found[1][1] or "DecodeError" in found[1][1]
