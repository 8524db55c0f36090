"""Which requests are the same: equal values in other bytes are, and other values never are."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.integrations.fingerprints import body_form, query_form

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def form(body: bytes | str, content_type: str = JSON, **headers: str) -> object:
    """Return the form of a body."""
    found = {"content-type": content_type, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return body_form(
        [found["content-type"]], body.encode() if isinstance(body, str) else body, is_encoded="content-encoding" in found
    )


def reordered(value: Any) -> Any:
    """Return the same value with the names of all objects in another order."""
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(value)}
    return [reordered(each) for each in value] if isinstance(value, list) else value


@given(value=VALUES)
def test_json_written_in_another_way_is_the_same(value: Any) -> None:
    """Order of names, white space and escapes."""
    assert form(json.dumps(value)) == form(
        json.dumps(reordered(value), indent=3, ensure_ascii=False).encode(errors="surrogatepass")
    )


@given(one=VALUES, other=VALUES)
def test_other_json_is_another_request(one: Any, other: Any) -> None:
    """`1`, `1.0`, `true` and `"1"` differ."""
    equal = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (form(json.dumps(one)) == form(json.dumps(other))) == equal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "1.0"),
        ("1", '"1"'),
        ("1", "true"),
        ("-0", "0"),
        ("0.1", "0.10000000000000000001"),
        (str(10**40), str(10**40 + 1)),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"a":1,"a":2}', '{"a":2,"a":1}'),
        ("[NaN]", "[null]"),
        ('"\\ud800"', '"\\ud801"'),
        ('["n1"]', "[1]"),
        ('["s1"]', '["1"]'),
        ("[" * 5000 + "]" * 5000, "[" * 5001 + "]" * 5001),
        ("{", "{ "),
        ("", "null"),
        ("[]", "{}"),
    ],
)
def test_different_requests_stay_different(one: str, other: str) -> None:
    """Where programs could read them differently, the bytes decide."""
    assert form(one) != form(other)
    assert form(one) == form(one)


@pytest.mark.parametrize(
    "headers",
    [{"content_encoding": "gzip"}, {"content_type": "application/json; charset=latin-1"}, {"content_type": "text/plain"}],
)
def test_bytes_stay_bytes_where_their_meaning_is_not_known(headers: dict[str, str]) -> None:
    """White space decides then."""
    assert form("[1]", **headers) != form("[1 ]", **headers)


@given(pairs=st.lists(st.tuples(st.text(max_size=2), st.text(max_size=3)), max_size=5))
def test_queries_and_forms_are_pairs_in_any_order_of_names(pairs: list[tuple[str, str]]) -> None:
    """The values of one name stay in their order."""
    by_name = sorted(pairs, key=lambda pair: pair[0], reverse=True)
    assert query_form(urlencode(pairs).encode()) == query_form(urlencode(by_name).encode())
    assert form(urlencode(pairs), FORM) == form(urlencode(by_name), FORM)


@pytest.mark.parametrize(
    ("one", "other"), [("a=1&a=2", "a=2&a=1"), ("a=1", "a=2"), ("a=1&b=2", "a=2&b=1"), ("a=%2B", "a=+"), ("a", "b")]
)
def test_other_pairs_are_another_request(one: str, other: str) -> None:
    """Equal names are a list."""
    assert query_form(one.encode()) != query_form(other.encode())


def test_pairs_in_other_escapes_are_the_same() -> None:
    """A client may escape more than it must."""
    assert query_form(b"name=a%20b&x=%7E") == query_form(b"x=~&name=a+b")


def multipart(boundary: str, *parts: str) -> object:
    """Return the form of a multipart body."""
    body = "".join(f"--{boundary}\r\ncontent-disposition: form-data; name=a\r\n\r\n{part}\r\n" for part in parts)
    return form(f"{body}--{boundary}--\r\n", f"multipart/form-data; boundary={boundary}")


def test_multipart_is_its_parts() -> None:
    """A client makes a new boundary for each request."""
    assert multipart("one", "x", "y") == multipart("two", "x", "y")
    assert multipart("one", "x", "y") != multipart("one", "y", "x")
    assert multipart("one", "x", "y") != multipart("one", "x")
    assert multipart("one", "x") != multipart("one", "--two")


def test_a_broken_multipart_body_is_bytes() -> None:
    """It has no parts."""
    kind = "multipart/form-data; boundary=one"
    assert form("--one\r\nx", kind) != form("--one\r\ny", kind)
