"""Dead letters in SQL that cannot be read cost themselves: they are listed with their key, exported, and deleted."""

import io
import random
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from sqlalchemy import insert, update

from onceonly.cli.files import write_lines
from onceonly.formats import undecodable
from onceonly.formats.records import encode_letter
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.failure_group import failure_group
from onceonly.operations.letters import pages
from onceonly.ports.dead_letters import Filter
from onceonly.sql.database import Database
from onceonly.sql.store import SqlDeadLetters
from onceonly.sql.store.tables import tables
from onceonly_conformance.samples import failures, rich_message
from tests.fuzzing import inputs
from tests.sql.harness import message
from tests.sql.test_foreign_store_rows import UNREADABLE, changed

BATCH = 500


def letter(name: str) -> DeadLetter:
    """Make a letter."""
    return DeadLetter(endpoint="shop", reason=f"no order {name}", headers=(), body=b"{}", message=message(name))


RICH = DeadLetter(
    endpoint="shop",
    reason="ValueError: 'π'",
    headers=(("ce-id", "1"), ("x", "é")),
    body=bytes(range(256)),
    message=rich_message(),
    history=failures(),
)
OTHERS_BYTES = encode_letter(letter("of another row"))


@pytest.fixture(autouse=True)
def _none_reported() -> None:
    undecodable._REPORTED_LETTERS.clear()


async def spoil(database: Database, key: str, stored: bytes) -> None:
    """Change the bytes of a letter."""
    own = tables(database.prefix).dead_letters
    async with database.writing() as connection:
        await connection.execute(update(own).where(own.c.key == key).values(letter=stored))


@pytest.mark.parametrize("stored", [*UNREADABLE, OTHERS_BYTES], ids=range(len(UNREADABLE) + 1))
async def test_an_unreadable_letter_is_shown_with_its_key(
    database: Database, stored: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """In pages, searches, groups and by key. It is exported with its bytes and deleted, and logged once."""
    letters, names = SqlDeadLetters(database), [letter(name) for name in ("a", "bad", "z")]
    for each in names:
        await letters.add(each)
    key = names[1].key
    await spoil(database, key, stored)
    expected = [each.key for each in names]
    assert [each.key for each in await letters.page(Filter())] == expected
    assert [each.key for each in await letters.page(Filter(), after=key)] == expected[2:]
    assert [each.letter.key for each in await letters.placed(Filter(endpoint="shop"))] == expected
    found = await letters.search(Filter(endpoint="shop", reason="order"), before=None, limit=10, read=100)
    assert [each.letter.key for each in found.found] == expected[::-1]
    assert [each.key for each in await letters.of_message("shop", message("bad").identity)] == [key]
    bad = await letters.get(key)
    assert isinstance(bad, UnreadableLetter)
    assert (bad.body, bad.endpoint, bad.message) == (stored, "shop", None)
    stream = io.BytesIO()
    assert await write_lines(pages(letters, Filter()), stream) == 3
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [line["key"] for line in lines] == expected
    (entry,) = [each for each in caplog.records if getattr(each, "event", "") == "dead letter unreadable"]
    assert entry.key == ascii(key)
    assert await letters.remove([key]) == 1
    assert [each.key for each in await letters.page(Filter())] == [expected[0], expected[2]]


async def test_a_group_stays_when_its_last_letter_is_unreadable(database: Database) -> None:
    """Its first letter describes it, so that its key still selects it."""
    letters = SqlDeadLetters(database)
    first, last = letter("1"), letter("2")
    for each in (first, last):
        await letters.add(each)
    await spoil(database, last.key, b"\x01")
    (group,) = (await letters.groups("shop")).groups
    assert (group.group, group.count, group.latest) == (failure_group(first), 2, last.key)
    await spoil(database, first.key, b"\x01")
    (group,) = (await letters.groups("shop")).groups
    assert (group.group, group.count) == (None, 2)


async def test_fuzz_dead_letters(database: Database) -> None:
    """Cut and changed bytes of a letter, and bytes that never were one. All rows are listed, and a selection of all ends."""
    own, letters, rng = tables(database.prefix).dead_letters, SqlDeadLetters(database), random.Random(38)  # noqa: S311 - inputs
    plain, row = encode_letter(RICH), {"endpoint": "shop", "type": "", "reason": "", "stored_at": 0, "failure": bytes(16)}
    for start in range(0, inputs(), BATCH):
        keys = [f"k{number}" for number in range(start, start + BATCH)]
        rows = [{**row, "key": key, "letter": changed(plain, rng)} for key in keys]
        async with database.writing() as connection:
            await connection.execute(insert(own), rows)
        assert await selected(letters) == keys
        await letters.groups("shop")
        assert await letters.remove(keys) == BATCH


async def selected(letters: SqlDeadLetters) -> list[str]:
    """Return the keys of all letters, as each command reads them."""
    found: AsyncIterator[Sequence[DeadLetter]] = pages(letters, Filter())
    return [each.key async for page in found for each in page]


async def test_fuzz_values_of_rows(database: Database) -> None:
    """SQLite stores a value of any type in any column: the good letter is listed, and so is each row whose key is text."""
    letters, rng = SqlDeadLetters(database), random.Random(38)  # noqa: S311 - inputs
    await letters.add(letter("good"))
    names = ("key", "endpoint", "type", "reason", "stored_at", "letter", "failure")
    values: list[object] = [0, -1, 2**63 - 1, 0.5, 1e300, "", "a\0'", "{}", b"\xff", b"", encode_letter(letter("x"))]
    for start in range(0, inputs(), BATCH):
        rows = [
            (rng.choice([f"k{number}", f"k{number}".encode()]), *(rng.choice(values) for _ in names[1:]))
            for number in range(start, start + BATCH)
        ]
        async with database.writing() as connection:
            await connection.exec_driver_sql(
                f"INSERT INTO {database.prefix}dead_letters ({', '.join(names)}) VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - our own names
                rows,
            )
        assert await selected(letters) == [letter("good").key, *(row[0] for row in rows if isinstance(row[0], str))]
        await letters.groups("shop")
        own = tables(database.prefix).dead_letters
        async with database.writing() as connection:
            await connection.execute(own.delete().where(own.c.key != letter("good").key))
