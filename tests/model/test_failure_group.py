"""Groups of dead letters with the same failure."""

import traceback
from collections.abc import Callable

import pytest

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.failure_group import FailureGroup, failure_group
from onceonly.model.message import Failure, FailureKind, Message

STANDARD = "/usr/lib/python3.11/json/decoder.py"
VENDOR = "/app/.venv/lib/python3.11/site-packages"


def letter(reason: str, trace: str = "", *, kind: FailureKind = FailureKind.EXCEPTION, type_: str = "PlaceOrder") -> DeadLetter:
    """Make a letter whose last failure has this reason and traceback."""
    message = Message(id="1", source="s", type=type_, body=b"{}")
    return DeadLetter(
        endpoint="shop",
        reason=reason,
        headers=(),
        body=b"{}",
        message=message,
        history=(Failure(kind=kind, reason=reason, traceback=trace),),
    )


def trace(*frames: tuple[str, str], last: str = "ValueError: 30 is no text") -> str:
    """Write a traceback of these files and functions."""
    lines = [
        f'  File "{file}", line {number}, in {function}\n    code()\n' for number, (file, function) in enumerate(frames, 9)
    ]
    return "Traceback (most recent call last):\n" + "".join(lines) + last + "\n"


def place(*frames: tuple[str, str]) -> str:
    """Return the place of a failure with these frames."""
    return failure_group(letter("ValueError: x", trace(*frames))).place


def raised(function: Callable[[], object]) -> str:
    """Return the traceback of what a function raises, as Python writes it."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return "".join(traceback.format_exception(error))
    raise AssertionError


def test_the_place_is_the_innermost_frame_of_the_application() -> None:
    """Frames of installed packages, of Python and of this library come after it."""
    frames = (
        ("/app/shop/handlers.py", "place"),
        ("/app/shop/charge.py", "charge"),
        (f"{VENDOR}/httpx/_client.py", "post"),
        (f"{VENDOR}/onceonly/endpoint/context.py", "send"),
        (STANDARD, "decode"),
        ("<string>", "<module>"),
    )
    assert failure_group(letter("ValueError: x", trace(*frames))) == FailureGroup(
        "PlaceOrder", "exception", "ValueError", "charge.py charge()"
    )


def test_an_installed_application_is_found_by_its_handler() -> None:
    """The traceback begins there. Its other modules belong to it, other packages do not."""
    assert place((f"{VENDOR}/acme/handlers.py", "on"), (f"{VENDOR}/acme/pay.py", "pay"), (f"{VENDOR}/httpx/a.py", "get")) == (
        "pay.py pay()"
    )


def test_without_a_frame_of_the_application_it_is_the_innermost_one() -> None:
    """Such as an error inside this library."""
    assert place(("/src/onceonly/endpoint/codec.py", "decode"), (STANDARD, "raw_decode")) == "decoder.py raw_decode()"


def test_windows_paths_are_read() -> None:
    """With their own separators."""
    assert place((r"C:\app\charge.py", "charge"), (r"C:\Python311\Lib\json\decoder.py", "decode")) == "charge.py charge()"


@pytest.mark.parametrize("change", ["line", "directory", "text"])
def test_a_release_does_not_change_the_group(change: str) -> None:
    """Line numbers, directories and the values in messages differ."""
    before = trace(("/srv/releases/41/charge.py", "charge"))
    after = {
        "line": before.replace("line 9", "line 123"),
        "directory": before.replace("/41/", "/42/"),
        "text": before.replace("30 is no text", "31\nis no text"),
    }[change]
    assert after != before
    assert failure_group(letter("a", before)).key == failure_group(letter("b", after)).key


def test_type_kind_exception_and_place_each_make_a_group() -> None:
    """So their keys differ, also when the parts are divided in another way."""
    one = FailureGroup("T", "exception", "ValueError", "a.py f()")
    others = [
        one._replace(type="U"),
        one._replace(kind="timeout"),
        one._replace(exception="KeyError"),
        one._replace(place="a.py g()"),
        FailureGroup("Te", "xception", "ValueError", "a.py f()"),
    ]
    keys = {each.key for each in (one, *others)}
    assert len(keys) == len(others) + 1
    assert {len(key) for key in keys} == {16}


def test_of_a_chain_the_last_exception_counts() -> None:
    """Python prints the one that was raised at the end."""

    def parse() -> None:
        try:
            int("x")
        except ValueError as error:
            raise LookupError("no order 7") from error

    group = failure_group(letter("LookupError: no order 7", raised(parse)))
    assert (group.exception, group.place) == ("LookupError", "test_failure_group.py parse()")


def test_an_exception_group_counts_by_itself() -> None:
    """Not by one of the exceptions in it."""

    def both() -> None:
        errors: list[Exception] = []
        for text in ("a", "b"):
            try:
                int(text)
            except ValueError as error:
                errors.append(error)
        raise ExceptionGroup("two", errors)

    group = failure_group(letter("ExceptionGroup: two", raised(both)))
    assert (group.exception, group.place) == ("ExceptionGroup", "test_failure_group.py both()")


def test_a_traceback_whose_beginning_was_cut_is_read() -> None:
    """Long ones keep their end."""
    cut = trace(("/app/a.py", "a"), ("/app/b.py", "b"), (STANDARD, "c"))[60:]
    assert failure_group(letter("ValueError: x", cut)).place == "b.py b()"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no order 17 of 30", "no order 4711 of 1"),
        ("customer 'Ana' is unknown", "customer 'Bob O' is unknown"),
        ('file "a b" is gone', 'file "c" is gone'),
        ("id 018bcfe56800-7ff5 is gone", "id 018bcfe56811-8aa0 is gone"),
        ("uuid 6f9619ff-8b86-d011-b42d-00cf4fc964ff", "uuid 00000000-8b86-d011-b42d-00cf4fc964fe"),
        ("at 0xDEADBEEF", "at 0x7f00"),
        ("first line\nsecond 'a'", "first line\nanother"),
    ],
)
def test_without_a_traceback_the_values_in_the_reason_do_not_matter(one: str, other: str) -> None:
    """Only its words."""
    groups = [failure_group(letter(reason, kind=FailureKind.REJECTED)) for reason in (one, other, "something else")]
    assert groups[0].key == groups[1].key != groups[2].key


@pytest.mark.parametrize("reason", ["the customer's order isn't there", "deadbeef", "face to face"])
def test_words_stay_words(reason: str) -> None:
    """Apostrophes do not quote, and a word of the letters a to f is not a number."""
    assert failure_group(letter(reason, kind=FailureKind.REJECTED)).place == reason


def test_an_exception_without_a_traceback_is_named_by_its_reason() -> None:
    """Transports drop tracebacks that are too large."""
    assert failure_group(letter("ValueError: no order 7"))[2:] == ("ValueError", "ValueError: no order …")
    assert failure_group(letter("payload: mismatch", kind=FailureKind.REJECTED)).exception == ""


def test_earlier_failures_are_not_the_cause_of_a_refusal() -> None:
    """A message that failed and then became too old is grouped by its age."""
    old = DeadLetter(
        endpoint="shop",
        reason="behind the horizon",
        headers=(),
        body=b"",
        history=(Failure(kind=FailureKind.EXCEPTION, reason="ValueError: x", traceback=trace(("/app/a.py", "a"))),),
    )
    assert failure_group(old) == FailureGroup("", "", "", "behind the horizon")


def test_hostile_text_has_a_group_in_little_time() -> None:
    """A megabyte of quotes, digits or frames."""
    for text in ("'" * 1_000_000, "a-1" * 400_000, '  File "' * 100_000, "\ud800\n" * 9, ""):
        group = failure_group(letter(text, text))
        assert len(group.key) == 16
        assert len(group.place) <= 210
