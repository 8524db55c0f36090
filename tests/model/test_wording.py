"""Numbers and names in a sentence."""

import pytest

from onceonly.model.ring import Undecidable
from onceonly.model.wording import counted


@pytest.mark.parametrize(("number", "words"), [(0, "0 records"), (1, "1 record"), (2, "2 records"), (12_000, "12,000 records")])
def test_only_one_is_singular(number: int, words: str) -> None:
    """Also without a record."""
    assert counted(number, "record") == words


def test_reasons_that_earlier_versions_stored_are_recognized() -> None:
    """Their dead letters may be retried by this version."""
    before = "behind the horizon: nothing is known here of what was handled at its time, so it may have been handled already"
    assert Undecidable.TOO_OLD.is_reason(before)
    assert Undecidable.TOO_OLD.is_reason(Undecidable.TOO_OLD.value)
    assert not Undecidable.TOO_NEW.is_reason(before)
    assert not Undecidable.SLOT_NOT_READY.is_reason("no stock")
