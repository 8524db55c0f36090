"""Numbers and names in a sentence."""

import pytest

from onceonly.model.wording import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (12_000, "12,000 records")])
def test_only_one_is_singular(number: int, words: str) -> None:
    """Also without a record."""
    assert counted(number, "record") == words
