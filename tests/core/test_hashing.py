import json
import sys
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothends.core.hashing import HASH_OF_NONE, canonical, content_hash

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def same(a: bytes | None, b: bytes | None) -> bool:
    return content_hash(a) == content_hash(b)


def test_same_id_other_content() -> None:
    """field-problems: same-id-other-content, the hash side."""
    first = b'{"a":1,"b":2}'
    assert same(first, b'{"b":2,"a":1}')
    assert not same(first, b'{"a":9}')


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":[1,2]}', b' {\n"a" : [ 1 ,\t2 ] }\r\n'),
        (b'{"k":"A"}', b'{"k":"\\u0041"}'),
        (b'{"k":"/"}', b'{"k":"\\/"}'),
        ('{"k":"\u00e9"}'.encode(), b'{"k":"\\u00e9"}'),
        ('{"k":"\U0001f445"}'.encode(), b'{"k":"\\ud83d\\udc45"}'),
        (b'{"a":{"c":1,"b":[{"y":1,"x":2}]}}', b'{"a":{"b":[{"x":2,"y":1}],"c":1}}'),
        (b'{"a":"x\\u0000y"}', b'{ "a":"x\\u0000y"}'),
        (b'{"a":"\\ud800"}', b'{ "a": "\\uD800" }'),
        (b"[]", b"[ ]"),
        (b'{"a":{}}', b'{"a": { }}'),
        (b'{"a":-0,"b":1}', b'{"b":1,"a":-0}'),
    ],
)
def test_spelling_does_not_matter(one: bytes, other: bytes) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"[1.0]", b"[1.00]"),
        (b"[1]", b"[1.0]"),
        (b"[1e2]", b"[100]"),
        (b"[1e2]", b"[1E2]"),
        (b"[-0]", b"[0]"),
        (b"[-0.0]", b"[0.0]"),
        (b"[616581622363398142]", b"[616581622363398144]"),
        (b"[123456789012345678901234567890]", b"[123456789012345678901234567891]"),
        (b"[1,2]", b"[2,1]"),
        (b'"1"', b"1"),
        (b'{"a":null}', b"{}"),
        ('{"é":1}'.encode(), '{"e\u0301":1}'.encode()),
        (b"null", None),
        (b"", None),
        (b"", b"null"),
        (b"{}", b"null"),
        (bytes(32), None),
    ],
)
def test_content_does_matter(one: bytes | None, other: bytes | None) -> None:
    assert not same(one, other)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":2}', b'{"a":1, "a":1}', b'{"x":{"a":1,"a":1}}', b'{"a":1,"\\u0061":2}', b"<xml/>", b"\xff\xfe",
        b"",
        b"[NaN]", b"[Infinity]", b"[01]", b"[1,]", b'{"a":1}}', b'["\x01"]', b'["\xc3\x28"]', b"\xef\xbb\xbf{}",
        b'{"a":1}\x00', b"[" * 100_000, b"[" * 300 + b"]" * 300, "[1]".encode("utf-16"),
    ],
)
def test_what_has_no_canonical_form_is_hashed_as_it_stands(body: bytes) -> None:
    assert canonical(body) is body
    assert content_hash(body) == sha256(body).digest()


def test_deep_json_gives_one_verdict_at_any_depth_of_the_stack() -> None:
    spaced = b"[ " * 199 + b"1" + b"]" * 199
    assert canonical(spaced) == b"[" * 199 + b"1" + b"]" * 199

    def deeper(levels: int) -> bytes:
        return deeper(levels - 1) if levels else canonical(spaced)

    assert deeper(300) == canonical(spaced)
    flat = b"[" + b",".join([b"[ ]"] * 5_000) + b"]"  # many, not deep; brackets in text count for nothing
    assert canonical(flat) == flat.replace(b" ", b"")
    text = b'[ "' + b"[\\\"" * 1_000 + b'"]'
    assert canonical(text) == text.replace(b"[ ", b"[")


def test_names_are_sorted_by_code_point() -> None:
    assert canonical('{"\U00010000":1,"\uffff":2,"a":3,"Z":4,"":5}'.encode()) == (
        '{"":5,"Z":4,"a":3,"\uffff":2,"\U00010000":1}'.encode()
    )


def test_a_tombstone_has_a_hash_of_its_own() -> None:
    assert content_hash(None) == HASH_OF_NONE
    assert len(content_hash(None)) == len(content_hash(b"{}")) == 32


@given(JSON_VALUES)
def test_order_white_space_and_escapes_never_change_the_hash(value: Any) -> None:
    def shuffled(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: shuffled(part[k]) for k in reversed(part)}
        return [shuffled(p) for p in part] if isinstance(part, list) else part

    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    spaced = json.dumps(shuffled(value), indent=2, ensure_ascii=True)
    assert same(compact.encode(), spaced.encode())
    assert canonical(canonical(spaced.encode())) == canonical(spaced.encode())


@given(JSON_VALUES, JSON_VALUES)
def test_other_values_have_other_hashes(one: Any, other: Any) -> None:
    texts = [json.dumps(v, sort_keys=True) for v in (one, other)]
    assert same(texts[0].encode(), texts[1].encode()) == (texts[0] == texts[1])


@given(st.binary(max_size=60))
def test_any_bytes_have_a_hash(body: bytes) -> None:
    assert len(content_hash(body)) == 32


def test_hashing_leaves_the_recursion_limit_alone() -> None:
    before = sys.getrecursionlimit()
    content_hash(b"[" * 150 + b" " + b"]" * 150)
    assert sys.getrecursionlimit() == before
