"""What a stored attempt says about its records."""

import pytest

from onceonly.model.identity import Identity
from onceonly.model.transaction import MOST_RECORDS, attempt_with_records, records_of

ATTEMPT = "0" * 32


def test_an_attempt_with_records_names_each() -> None:
    """None, one, and many."""
    for count in (0, 1, 3):
        named = records_of("shop", attempt_with_records(ATTEMPT, count))
        assert named == tuple(Identity("shop", f"{ATTEMPT}.{number}") for number in range(count))


def test_any_other_attempt_has_one_record() -> None:
    """It is found under the attempt itself."""
    assert records_of("shop", ATTEMPT) == (Identity("shop", ATTEMPT),)


@pytest.mark.parametrize(
    "attempt", ["", "x/3", f"{ATTEMPT}/", f"{ATTEMPT}/-1", f"{ATTEMPT}/3\n", f"{ATTEMPT}/1000000", "a/b/3"]
)
def test_text_that_no_attempt_has_names_no_list(attempt: str) -> None:
    """Whatever a database contains, nothing is read but one record."""
    assert records_of("shop", attempt) == (Identity("shop", attempt),)


def test_a_count_that_no_attempt_has_is_cut() -> None:
    """So a changed row costs no more than the longest list."""
    assert len(records_of("shop", f"{ATTEMPT}/999999")) == MOST_RECORDS


@pytest.mark.parametrize("attempt", [None, 7, b"0"])
def test_a_value_that_is_no_text_names_nothing(attempt: object) -> None:
    """SQLite stores a value of any type in any column."""
    assert records_of("shop", attempt) == ()
