"""Dead letters in SQL, beyond what the suite for all adapters asks."""

from pathlib import Path

import pytest

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed
from onceonly.ports.dead_letters import Filter
from onceonly.sql.database import Database
from onceonly.sql.store import SqlDeadLetters
from onceonly_conformance.clock import START, ManualClock
from onceonly_conformance.samples import failures, rich_message
from tests.sql.harness import message, opened, url


def letter(name: str = "m1", reason: str = "no such order", **fields: object) -> DeadLetter:
    """Make a letter."""
    return DeadLetter(endpoint="shop", reason=reason, headers=(), body=b"{}", message=message(name), **fields)


async def test_a_letter_survives_the_process(file: Path, database: Database) -> None:
    """With everything in it; the time is the store's own."""
    rich = DeadLetter(
        endpoint="shop",
        reason="ValueError: 'π'\nsecond line",
        headers=(("ce-id", "1"), ("x", "é")),
        body=bytes(range(256)),
        message=rich_message(),
        attempts=8,
        history=failures(),
        finish_only=True,
    )
    await SqlDeadLetters(database).add(rich)
    async with opened(url(file)) as later:
        found = await SqlDeadLetters(later).get(rich.key)
        assert found is not None
        assert found.at == START
        assert (found.message, found.history, found.body, found.finish_only) == (rich.message, failures(), rich.body, True)


async def test_a_letter_that_was_stored_elsewhere_keeps_its_time(database: Database) -> None:
    """An imported letter is as old as it was."""
    await SqlDeadLetters(database).add(letter(at=5))
    assert [found.at for found in await SqlDeadLetters(database).page(Filter())] == [5]


async def test_the_first_reason_is_kept(file: Path) -> None:
    """Adding again changes nothing, not even the time."""
    clock = ManualClock()
    async with opened(url(file), tables=True, clock=clock) as database:
        letters = SqlDeadLetters(database)
        await letters.add(letter(reason="first"))
        clock.advance(1000)
        await letters.add(letter(reason="second"))
        found = await letters.page(Filter())
        assert [(each.reason, each.at) for each in found] == [("first", START)]


async def test_a_part_of_the_reason_is_taken_literally(database: Database) -> None:
    """Nothing in it is a pattern, and case counts."""
    letters = SqlDeadLetters(database)
    for name, reason in (("a", "100% wrong"), ("b", "100 wrong"), ("c", "snake_case"), ("d", "snakeXcase"), ("e", "it's")):
        await letters.add(letter(name, reason))
    counts = [await letters.count(Filter(reason=part)) for part in ("100%", "wrong", "e_c", "Wrong", "'", "' OR 1=1 --")]
    assert counts == [1, 2, 1, 0, 1, 0]


async def test_thousands_are_paged_and_removed(database: Database) -> None:
    """In the order they were added, also when letters in between were removed."""
    letters = SqlDeadLetters(database)
    for number in range(30):
        await letters.add(letter(f"m{number}"))
    first = await letters.page(Filter(), limit=10)
    assert await letters.remove([each.key for each in first[:5]] * 2 + ["unknown"]) == 5
    second = await letters.page(Filter(), after=first[-1].key, limit=10)
    assert [each.message.id for each in second if each.message] == [f"m{number}" for number in range(10, 20)]
    assert await letters.remove([f"k{number}" for number in range(40_000)]) == 0


async def test_a_letter_that_cannot_be_stored_says_so(file: Path) -> None:
    """Its delivery is released then, and nothing is lost."""
    async with opened(url(file)) as database:
        with pytest.raises(CommitFailed, match="no such table"):
            await SqlDeadLetters(database).add(letter())
