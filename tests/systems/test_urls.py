"""Reading the URLs of systems: every wrong option has a clear error, and none repeats a password."""

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceonly.model.errors import SetupError
from onceonly.systems.urls import read_number, read_options, read_seconds, read_truth, split_url

EXAMPLE = "toy://user:password@host/"


def test_host_and_port_are_read() -> None:
    """A URL without a port has none."""
    parts, port = split_url("toy://me:secret@host:9/path?a=b", "toy", EXAMPLE)
    assert (parts.hostname, port, parts.path, parts.query) == ("host", 9, "/path", "a=b")
    assert split_url("toy://host", "toy", EXAMPLE)[1] is None


@pytest.mark.parametrize("url", ["toy://", "toy:///path", "toy://[", "toy://host:port", "toy://host:99999"])
def test_a_url_without_a_host_shows_an_example(url: str) -> None:
    """The message shows how to write one."""
    with pytest.raises(SetupError, match="use a URL such as toy://user:password@host/") as raised:
        split_url(url, "toy", EXAMPLE)
    assert "cret" not in str(raised.value)


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=8)))
def test_options_are_read_as_they_were_written(options: dict[str, str]) -> None:
    """Whatever their values contain."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
    assert read_options(query, "toy", "abc") == options


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("a=1&d=2", "unknown option 'd' in the toy URL. Supported: a, b"),
        ("a=1&a=2", "option a is set more than once in the toy URL: set it once"),
        ("b=1&a", "option a has no value in the toy URL: write a=VALUE"),
        ("=1", "unknown option '' in the toy URL. Supported: a, b"),
    ],
)
def test_an_option_that_cannot_be_read_is_told(query: str, words: str) -> None:
    """Unknown, repeated, or without a value."""
    with pytest.raises(SetupError) as raised:
        read_options(query, "toy", ("b", "a"))
    assert str(raised.value) == words


def test_empty_parts_and_values_are_allowed() -> None:
    """A URL that a program puts together may end in `&`."""
    assert read_options("", "toy", "a") == {}
    assert read_options("a=&", "toy", "a") == {"a": ""}


@pytest.mark.parametrize(("text", "seconds"), [("30", 30.0), ("0.001", 0.001), ("9999.999", 9999.999)])
def test_seconds_have_three_decimals(text: str, seconds: float) -> None:
    """A missing option has its default."""
    assert read_seconds({"lease": text}, "lease", 5.0) == seconds
    assert read_seconds({}, "lease", 5.0) == 5.0


@pytest.mark.parametrize("text", ["", "0", "0.000", "-1", "10000", "1e3", "1.0001", "soon", "nan", " 1"])
def test_other_seconds_are_refused(text: str) -> None:
    """The message repeats the value and shows a right one."""
    with pytest.raises(SetupError) as raised:
        read_seconds({"lease": text}, "lease", 5.0)
    assert str(raised.value) == f"option lease={text!r}: use a number of seconds above 0, below 10000, such as 30"


def test_zero_seconds_where_they_are_allowed() -> None:
    """A wait may be none at all."""
    assert read_seconds({"timeout": "0"}, "timeout", 5.0, zero=True) == 0.0
    with pytest.raises(SetupError, match="use a number of seconds below 10000, such as 30"):
        read_seconds({"timeout": "-1"}, "timeout", 5.0, zero=True)


def test_numbers_within_their_bounds() -> None:
    """Both bounds are allowed."""
    assert [read_number({"size": text}, "size", 3, least=2, most=5) for text in ("2", "5")] == [2, 5]
    assert read_number({}, "size", 3, most=5) == 3


@pytest.mark.parametrize("text", ["", "1", "6", "-2", "2.0", "1GB", "9999999999"])
def test_other_numbers_are_refused(text: str) -> None:
    """The message names the bounds, and the unit if there is one."""
    with pytest.raises(SetupError) as raised:
        read_number({"size": text}, "size", 3, least=2, most=5, unit="bytes")
    assert str(raised.value) == f"option size={text!r}: use a whole number of bytes from 2 to 5"
    with pytest.raises(SetupError, match="use a whole number from 2 to 5"):
        read_number({"size": text}, "size", 3, least=2, most=5)


def test_switches_are_words_or_digits() -> None:
    """Case does not matter."""
    assert [read_truth({"on": text}, "on", default=False) for text in ("true", "YES", "1")] == [True] * 3
    assert [read_truth({"on": text}, "on", default=True) for text in ("False", "no", "0")] == [False] * 3
    assert (read_truth({}, "on", default=True), read_truth({}, "on", default=False)) == (True, False)
    with pytest.raises(SetupError, match="option on='maybe': use true or false"):
        read_truth({"on": "maybe"}, "on", default=True)
