"""Content types: the same rule for messages, blobs and HTTP responses."""

import time

import pytest

from onceonly.model.headers import content_type_problem

RIGHT = [
    "text/csv",
    "application/vnd.shop.order+json",
    "a!#$%&'*+-.^_`|~9/b",
    "text/plain; charset=utf-8",
    "text/plain;charset=utf-8",
    "text/plain ; charset=utf-8;format=flowed",
    'text/csv; header="a; \\"b\\", c"; charset=utf-8',
    "multipart/mixed; boundary=gc0p4Jq0M2Yt08j34c0p",
    "text/plain;",
    "text/plain; ;charset=utf-8",
]
WRONG = [
    "",
    "text",
    "text/",
    "/csv",
    "text/csv/x",
    "text /csv",
    " text/csv",
    "text/csv ",
    "text/csv; ",
    "text/csv; charset",
    "text/csv; charset=",
    "text/csv; charset =utf-8",
    "text/csv; charset=utf 8",
    'text/csv; header="a',
    'text/csv; header="a"b',
    "text/csv, text/plain",
    "text/csv\n",
    "text/csv\r\nset-cookie: a=b",
    "text/csv;\tcharset=utf-8",
    'text/csv; header="a\tb"',
    "text/csv\0",
    "text/csv\x7f",
    "text/\N{LATIN SMALL LETTER E WITH ACUTE}",
    'text/csv; header="\N{EURO SIGN}"',
    "text/\ud800",
]


@pytest.mark.parametrize("given", RIGHT)
def test_media_types_with_parameters_are_taken(given: str) -> None:
    """As RFC 9110, 8.3.1 writes them."""
    assert content_type_problem(given) == ""


@pytest.mark.parametrize("given", WRONG)
def test_what_is_no_media_type_is_refused(given: str) -> None:
    """A line break could add a header, and other letters cannot be sent."""
    assert "must be a media type in ASCII" in content_type_problem(given)


@pytest.mark.parametrize("given", [None, 5, b"text/csv", ["text/csv"]])
def test_only_text_is_a_content_type(given: object) -> None:
    """The error names the type."""
    assert content_type_problem(given) == f"must be a string, not {type(given).__name__}"


def test_a_content_type_has_a_longest() -> None:
    """Some places take less than others."""
    assert content_type_problem("text/" + "x" * 250) == ""
    assert "256 characters; the limit is 255" in content_type_problem("text/" + "x" * 251)
    assert "12 characters; the limit is 11" in content_type_problem("text/1234567", longest=11)


def test_no_content_type_takes_long_to_check() -> None:
    """Blanks and semicolons can be divided in one way only."""
    started = time.process_time()
    content_type_problem("text/plain" + ";   " * 61 + "\0")
    content_type_problem("text/plain" + ";" * 240 + ' a="\\')
    assert time.process_time() - started < 1
