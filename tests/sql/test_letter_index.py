"""What dead letters in SQL offer to operators: groups, pages by position, and letters of a message, each by an index."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Select, insert

from onceonly.formats.records import encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.failure_group import failure_group
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.ports.dead_letters import Filter, LetterIndex
from onceonly.sql.database import Database
from onceonly.sql.store import SqlDeadLetters
from onceonly.sql.store import dead_letters as module
from onceonly.sql.store.tables import tables
from onceonly_conformance.clock import START
from tests.sql.every_database import emptied
from tests.sql.query_plans import analyze, plan_of


def letter(number: int, reason: str = "no order", *, endpoint: str = "shop", body: bytes = b"{}") -> DeadLetter:
    """Make a letter."""
    message = Message(id=f"m{number}", source="test", type="PlaceOrder", body=body)
    return DeadLetter(endpoint=endpoint, reason=f"{reason} {number}", headers=(), body=body, message=message, at=START + number)


SOME_MESSAGE = Message(id="m1", source="test", type="PlaceOrder", body=b"{}")
SOME_LETTER = encode_letter(letter(1))


def key_of(reason: str) -> str:
    """Return the key of a group."""
    return failure_group(letter(1, reason)).key.hex()


@asynccontextmanager
async def stored(place: str, *letters: DeadLetter) -> AsyncIterator[tuple[Database, SqlDeadLetters]]:
    """Open a database with these letters."""
    async with emptied(place) as database:
        found = SqlDeadLetters(database)
        for each in letters:
            await found.add(each)
        yield database, found


async def test_groups_are_counted(place: str) -> None:
    """With the times of their first and last letter, for one endpoint and for all."""
    given = [letter(1, "gone"), *(letter(number) for number in (2, 3, 4)), letter(5, endpoint="billing")]
    async with stored(place, *given) as (_, letters):
        assert isinstance(letters, LetterIndex)
        found = await letters.groups("shop")
        assert [(each.count, str(each.group), each.first - START, each.last - START) for each in found.groups] == [
            (3, "no order …", 2, 4),
            (1, "gone …", 1, 1),
        ]
        assert found.complete
        assert found.groups[0].latest == given[3].key
        assert sorted(each.endpoint for each in (await letters.groups()).groups) == ["billing", "shop", "shop"]


async def test_letters_beyond_the_limit_are_not_counted(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer says so."""
    async with stored(place, *map(letter, range(5))) as (_, letters):
        monkeypatch.setattr(module, "COUNTED", 5)
        assert (await letters.groups("shop")).complete
        monkeypatch.setattr(module, "COUNTED", 4)
        assert not (await letters.groups("shop")).complete


async def test_endpoints_with_letters_are_listed(place: str) -> None:
    """Each once, whatever it is called."""
    async with stored(place) as (_, letters):
        assert isinstance(letters, LetterIndex)
        assert await letters.endpoints() == ()
        for number, name in enumerate(("shop", "Shop", "billing", "shop", "a.b-c")):
            await letters.add(letter(number, endpoint=name))
        assert sorted(await letters.endpoints()) == ["Shop", "a.b-c", "billing", "shop"]


async def test_few_letters_are_counted_however_far_apart_they_are(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their positions then do not show that they are few, and the query has a limit. The answer is the same."""
    given = [letter(number) for number in range(6)]
    async with stored(place, *given) as (_, letters):
        await letters.remove([each.key for each in given[1:5]])
        found = {}
        for counted in (4, 5, 6):
            monkeypatch.setattr(module, "COUNTED", counted)
            found[counted] = [await letters.groups(name) for name in ("shop", "", "nobody")]
        assert found[4] == found[5] == found[6]
        assert [each.count for each in found[4][0].groups] == [2]
        assert all(each.complete for each in found[4])


async def test_a_group_selects_its_letters(place: str) -> None:
    """On pages, in counts, and by position in both directions."""
    async with stored(place, letter(1, "gone"), letter(2), letter(3), letter(4, "gone"), letter(5, "gone")) as (_, letters):
        chosen = Filter(endpoint="shop", failure=key_of("gone"))
        assert [each.reason for each in await letters.page(chosen)] == ["gone 1", "gone 4", "gone 5"]
        assert await letters.count(chosen) == 3
        first, *rest = await letters.placed(chosen, limit=2)
        assert [each.letter.reason for each in (first, *rest)] == ["gone 1", "gone 4"]
        total, last = await letters.extent(chosen)
        assert total == 3
        assert [each.letter.reason for each in await letters.placed(chosen, after=first.position, upto=last - 1)] == ["gone 4"]
        newest = await letters.placed(chosen, newest=True, limit=2)
        assert [each.letter.reason for each in newest] == ["gone 5", "gone 4"]
        for digits in ("", "nonsense", "00" * 16):
            assert await letters.count(Filter(endpoint="shop", failure=digits)) == (0 if digits else 5)
        assert await letters.extent(Filter(endpoint="other")) == (0, 0)


async def test_a_search_reads_a_limited_number_of_letters(place: str) -> None:
    """The newest first. It reports how far it came, also when it found nothing, and the next one continues there."""
    other = replace(letter(4), message=replace(SOME_MESSAGE, id="m4", type="Other"))
    async with stored(place, letter(1), letter(2), letter(3), other, *map(letter, range(5, 9))) as (_, letters):
        chosen = Filter(endpoint="shop", type="Other")
        first = await letters.search(chosen, before=None, limit=2, read=3)
        assert first.found == ()
        second = await letters.search(chosen, before=first.reached, limit=2, read=3)
        assert [each.letter.key for each in second.found] == [other.key]
        third = await letters.search(chosen, before=second.reached, limit=2, read=3)
        assert (third.found, third.reached) == ((), 0)
        full = await letters.search(replace(chosen, type="PlaceOrder"), before=None, limit=2, read=3)
        assert [each.letter.reason for each in full.found] == ["no order 8", "no order 7"]
        assert full.reached == full.found[-1].position
        assert await letters.search(Filter(endpoint="none"), before=None, limit=2, read=3) == ((), 0)


async def test_an_extent_is_counted_up_to_its_limit(place: str) -> None:
    """The last position is that of all letters."""
    async with stored(place, *map(letter, range(5))) as (_, letters):
        total, last = await letters.extent(Filter(endpoint="shop"))
        assert total == 5
        assert await letters.extent(Filter(endpoint="shop"), limit=3) == (3, last)


async def test_letters_of_a_message_are_found(place: str) -> None:
    """One for each body, of one endpoint."""
    given = [letter(1, body=b"1"), letter(1, body=b"2"), letter(1, endpoint="billing"), letter(2)]
    async with stored(place, *given) as (_, letters):
        found = await letters.of_message("shop", Identity("test", "m1"))
        assert [each.body for each in found] == [b"1", b"2"]
        assert await letters.of_message("shop", Identity("other", "m1")) == ()


async def fill(database: Database, count: int) -> None:
    """Store many rows at once: 20 groups at two endpoints."""
    table = tables(database.prefix, database.schema).dead_letters
    groups = [failure_group(letter(1, f"{chr(97 + number)} failed")).key for number in range(20)]
    rows = [
        {
            "key": f"{number:032x}",
            "endpoint": "billing" if number % 100 else "shop",
            "type": "PlaceOrder",
            "reason": "no order",
            "stored_at": START + number,
            "letter": SOME_LETTER,
            "failure": groups[number % 20],
            "identity": claim_key("shop", Identity("test", f"m{number}")),
        }
        for number in range(count)
    ]
    async with database.writing() as connection:
        for start in range(0, count, 2000):
            await connection.execute(insert(table), rows[start : start + 2000])
    await analyze(database, "dead_letters")


async def test_every_query_uses_an_index(place: str) -> None:
    """None reads the whole table, and none sorts it."""
    async with stored(place) as (database, letters):
        await fill(database, 20_000)
        index = f"index {database.prefix}dead_letters_"
        of_endpoint, of_group = (
            Filter(endpoint="shop"),
            Filter(endpoint="shop", failure=failure_group(letter(1, "a failed")).key.hex()),
        )
        queries: tuple[Select[Any], ...] = (
            letters.counting("shop"),
            letters.counting(),
            letters.placing(of_endpoint, after=5000, upto=19_000, limit=100, newest=False),
            letters.placing(of_group, after=5000, upto=19_000, limit=100, newest=False),
            letters.placing(of_group, after=0, upto=None, limit=100, newest=True),
            letters.identifying("shop", Identity("test", "m7")),
            letters.spanning("shop"),
        )
        if database.dialect.name != "postgresql":  # it always has the limit
            queries += (letters.counting("shop", limited=False), letters.counting(limited=False))
        for query in queries:
            plan = await plan_of(database, query)
            assert not plan.scans, (str(query), plan)
            assert any(step.startswith(index) for step in plan), (str(query), plan)  # servers choose between two of them
