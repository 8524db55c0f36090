"""The message journal on each SQL database: in the unit's transaction, bounded in rows and in time."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from onceonly.config.retention import Journal
from onceonly.model.conversation import (
    DEAD_LETTER,
    DUPLICATE,
    HANDLED,
    RETRIED,
    SENT,
    JournalEntry,
    JournalRun,
    conversation_key,
    message_key,
)
from onceonly.model.dead_letter import letter_key
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import JOURNAL_SCHEMA, SCHEMA, SqlMessageJournal, SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.sql.emptying import empty
from tests.sql.harness import opened, statements

DAY = 86_400_000
NEXT = Message(id="next", source="till", type="Paid", body=b"secret", extensions=(("conversationid", "m1"),))


@asynccontextmanager
async def journalled(
    place: str, setting: Journal | None = None
) -> AsyncIterator[tuple[Database, SqlMessageJournal, ManualClock]]:
    """Open a database with empty tables and a journal whose clock the test moves."""
    clock = ManualClock()
    async with opened(place, clock=clock) as database:
        for schema in (SCHEMA, JOURNAL_SCHEMA):
            await create(database, schema)
            await empty(database, schema.tables(database.prefix, database.schema).sorted_tables)
        yield database, SqlMessageJournal(database, "shop", setting or Journal()), clock


async def handle(
    database: Database, journal: SqlMessageJournal | None, *asked: Message, sends: tuple[Message, ...] = ()
) -> None:
    """Handle what is new, and send the same messages for each."""
    unit = await SqlStore(database, "shop", journal=journal).begin(asked)
    await unit.commit([Record(each.identity, tuple(Send(message=sent) for sent in sends)) for each in unit.found.new])


async def test_what_was_handled_and_sent_is_there_once(place: str) -> None:
    """A copy that comes again after the commit, as after a crash before the ack, adds nothing."""
    async with journalled(place) as (database, journal, clock):
        await handle(database, journal, message("m1"), sends=(NEXT,))
        await handle(database, journal, message("m1"), sends=(NEXT,))
        found = await journal.conversation(conversation_key(NEXT))
        one = message_key(message("m1").identity)
        assert [(each.outcome, each.message, each.parent) for each in found.events] == [
            (HANDLED, one, None),
            (SENT, message_key(NEXT.identity), one),
        ]
        sent = await journal.of_message(NEXT.identity)
        assert [(each.outcome, each.type, each.parent, each.at) for each in sent.events] == [(SENT, "Paid", one, clock.now())]
        assert len((await journal.of_message(message("m1").identity)).events) == 1


async def test_what_is_rolled_back_is_not_in_the_journal(place: str) -> None:
    """The rows are part of the unit's transaction."""
    async with journalled(place) as (database, journal, _):
        unit = await SqlStore(database, "shop", journal=journal).begin([message("m1")])
        unit.abandon()
        await handle(database, journal, message("m2"))
        assert (await journal.of_message(message("m1").identity)).events == ()
        assert len((await journal.of_message(message("m2").identity)).events) == 1


async def test_the_next_table_is_emptied_and_the_time_to_keep_is_kept(place: str) -> None:
    """Events stay for `keep` at least; after 1.5 times of it and a rotation they are gone."""
    async with journalled(place, Journal(keep=timedelta(days=2))) as (database, journal, clock):
        await handle(database, journal, message("m1"))
        for days in range(1, 4):
            clock.advance(DAY)
            rotated = await journal.rotate()
            events = (await journal.of_message(message("m1").identity)).events
            assert (days, rotated, len(events)) == (days, int(days == 3), int(days < 3))


SHORT, LONG = timedelta(minutes=2), timedelta(days=2)


async def pass_time(clock: ManualClock, *journals: SqlMessageJournal, hours: float) -> None:
    """Let maintenance run each half hour for so long."""
    for _ in range(round(hours * 2)):
        clock.advance(DAY // 48)
        for journal in journals:
            await journal.rotate()


async def test_of_two_settings_the_longer_one_holds_for_all(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """Tables are shared: whoever keeps less loses nothing of the other one, and is warned once."""
    async with journalled(place, Journal(keep=LONG)) as (database, journal, clock):
        other = SqlMessageJournal(database, "billing", Journal(keep=SHORT))
        await handle(database, other, message("m0"))
        await handle(database, journal, message("m1"))
        with caplog.at_level(logging.WARNING):
            await pass_time(clock, other, hours=47)
            await handle(database, other, message("m2"))
        assert len((await journal.of_message(message("m1").identity)).events) == 1
        (warning,) = [each for each in caplog.records if "keeps events for longer" in each.message]
        fields = warning.__dict__
        assert (fields["endpoint"], fields["keep"], fields["longest"], fields["other"]) == ("billing", "2 min", "2 d", "shop")
        await pass_time(clock, journal, other, hours=26)
        assert (await journal.of_message(message("m1").identity)).events == ()
        assert len((await other.of_message(message("m2").identity)).events) == 1


async def test_a_table_with_young_events_is_not_emptied(place: str) -> None:
    """A process that has not read a new setting writes to another table, perhaps to the one that is emptied next."""
    async with journalled(place, Journal(keep=LONG)) as (database, journal, clock):
        other = SqlMessageJournal(database, "billing", Journal(keep=SHORT))
        while clock.now() // 60_000 % 4 != (clock.now() // DAY + 1) % 4:
            clock.advance(60_000)
        await handle(database, other, message("m1"))
        assert await journal.rotate() == 0
        assert len((await other.of_message(message("m1").identity)).events) == 1


async def test_a_process_that_does_not_rotate_follows_within_a_minute(place: str) -> None:
    """Both then write to the same table."""
    async with journalled(place, Journal(keep=LONG)) as (database, journal, clock):
        other = SqlMessageJournal(database, "billing", Journal(keep=SHORT))
        clock.advance(DAY + SHORT // timedelta(milliseconds=2))  # their tables are different ones by now
        await handle(database, other, message("m0"))
        await handle(database, journal, message("m1"))
        clock.advance(60_000)
        await handle(database, other, message("m2"))
        tables = [await written(database, number) for number in range(4)]
        assert sorted(tables) == [[], [], ["m0"], ["m1", "m2"]]


async def test_a_shorter_setting_holds_when_what_was_promised_before_is_over(place: str) -> None:
    """Events of before keep their time. Then the endpoint's earlier setting is forgotten."""
    async with journalled(place, Journal(keep=LONG)) as (database, journal, clock):
        await handle(database, journal, message("m1"))
        shorter = SqlMessageJournal(database, "shop", Journal(keep=timedelta(hours=1)))
        await pass_time(clock, shorter, hours=47)
        assert len((await shorter.of_message(message("m1").identity)).events) == 1
        await pass_time(clock, shorter, hours=73)
        await handle(database, shorter, message("m2"))
        assert len((await shorter.of_message(message("m2").identity)).events) == 1
        await pass_time(clock, shorter, hours=2)
        assert (await shorter.of_message(message("m2").identity)).events == ()
        assert await kept(database) == [("shop", DAY // 24)]


async def test_one_setting_is_announced_and_nobody_is_warned(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two endpoints and two processes that agree are as one."""
    async with journalled(place) as (database, journal, clock):
        journals = (journal, SqlMessageJournal(database, "shop", Journal()), SqlMessageJournal(database, "billing", Journal()))
        with caplog.at_level(logging.WARNING):
            for each in journals:
                await handle(database, each, message("m1"))
            await pass_time(clock, *journals, hours=60)
        assert caplog.records == []
        assert await kept(database) == [("billing", DAY), ("shop", DAY)]


async def kept(database: Database) -> list[tuple[str, int]]:
    """Read what endpoints announce."""
    async with database.reading() as connection:
        query = text(f"SELECT endpoint, keep FROM {database.prefix}journal_settings ORDER BY endpoint, keep")  # noqa: S608 - our own table
        return [(row.endpoint, row.keep) for row in await connection.execute(query)]


async def written(database: Database, number: int) -> list[str]:
    """Read the ids in one of the tables."""
    table = JOURNAL_SCHEMA.tables(database.prefix, database.schema).tables[f"{database.prefix}journal_{number}"]
    async with database.reading() as connection:
        return sorted(await connection.scalars(select(table.c.id)))


async def test_a_full_table_takes_no_more_and_says_so(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """The limit is met to one look; messages are handled as before, and the next table is written again."""
    async with journalled(place, Journal(keep=timedelta(days=2), rows=1000)) as (database, journal, clock):
        with caplog.at_level(logging.WARNING):
            for batch in range(12):
                await handle(database, journal, *(message(f"{batch}-{number}") for number in range(100)))
                clock.advance(20_000)
        assert len((await journal.of_message(message("9-1").identity)).events) == 1
        lost = await journal.of_message(message("11-1").identity)
        assert (lost.events, lost.is_full) == ((), True)
        assert sum("message journal is full" in each.message for each in caplog.records) == 1
        clock.advance(DAY)
        await handle(database, journal, message("later"))
        later = await journal.of_message(message("later").identity)
        assert (len(later.events), later.is_full) == (1, False)


async def test_a_journal_costs_one_statement_for_a_batch_and_none_without(place: str) -> None:
    """Off means that nothing is sent; on means one insert."""
    async with journalled(place) as (database, journal, _):
        await journal.prepare()
        counts = []
        for number, chosen in enumerate((None, journal)):
            await handle(database, chosen, message(f"warm-{number}"))
            with statements(database) as heard:
                await handle(database, chosen, *(message(f"{number}-{each}") for each in range(10)))
            counts.append(sum("journal" in each for each in heard))
        assert counts == [0, 1]


async def test_what_happens_outside_of_units_is_added_by_one_statement(place: str) -> None:
    """Attempt, duration, error and dead letter come back; what is not known stays so."""
    async with journalled(place) as (database, journal, clock):
        one, letter = message("m1"), letter_key("shop", message("m1"))
        entries = [
            JournalEntry(message=one, outcome=RETRIED, at=1, attempt=1, duration=1500, error="shop.Refused"),
            JournalEntry(message=one, outcome=DUPLICATE, at=2),
            JournalEntry(message=one, outcome=DEAD_LETTER, at=clock.now(), attempt=2, error="timeout\0<b>", letter=letter),
        ]
        await journal.prepare()
        with statements(database) as heard:
            await journal.add(entries)
            await journal.add([])
        assert sum("journal" in each for each in heard) == 1
        found = (await journal.conversation(conversation_key(one))).events
        assert [(each.outcome, each.at, each.attempt, each.duration, each.letter) for each in found] == [
            (RETRIED, 1, 1, 1500, ""),
            (DUPLICATE, 2, 0, None, ""),
            (DEAD_LETTER, clock.now(), 2, None, letter),
        ]
        assert [each.error for each in found[:2]] == ["shop.Refused", ""]
        assert found[2].error in {"timeout\0<b>", "timeout\\0<b>"}


async def test_a_full_table_takes_no_entries(place: str) -> None:
    """They are bounded as the others are."""
    async with journalled(place, Journal(rows=1000)) as (_, journal, clock):
        entries = [JournalEntry(message=message(f"m{number}"), outcome=DUPLICATE, at=1) for number in range(100)]
        for _ in range(12):
            await journal.add(entries)
            clock.advance(20_000)
        assert len((await journal.of_message(message("m1").identity)).events) == 10


async def test_what_is_handled_has_the_run_that_was_committed(place: str) -> None:
    """A run that is forgotten, or of another message, is not in it."""
    async with journalled(place) as (database, journal, _):
        for name in ("m1", "m2"):
            journal.ran(message(name).identity, JournalRun(attempt=3, duration=2500))
        journal.ran(message("m2").identity, None)
        await handle(database, journal, message("m1"), message("m2"), sends=(NEXT,))
        (one,), (two,) = [(await journal.of_message(message(name).identity)).events for name in ("m1", "m2")]
        assert (one.attempt, one.duration) == (3, 2500)
        assert (two.attempt, two.duration) == (0, None)
        assert {each.attempt for each in (await journal.of_message(NEXT.identity)).events} == {0}


async def test_no_bodies_are_stored(place: str) -> None:
    """Nor header values: only names and identities."""
    async with journalled(place) as (database, journal, _):
        await handle(database, journal, message("m1"), sends=(NEXT,))
        async with database.reading() as connection:
            for number in range(4):
                rows = (await connection.execute(text(f"SELECT * FROM {database.prefix}journal_{number}"))).all()  # noqa: S608 - our own table
                assert b"secret" not in repr(rows).encode()


async def test_text_that_no_column_takes_comes_back(place: str) -> None:
    """Ids and sources with zero characters and tags are exact. A type is escaped where a column does not take it."""
    async with journalled(place) as (database, journal, _):
        odd = Message(id="a\0<b>\u202e", source="s\0", type="<script>\0", body=b"")
        await handle(database, journal, odd)
        (event,) = (await journal.of_message(odd.identity)).events
        assert event.identity == odd.identity
        assert event.type in {"<script>\0", "<script>\\0"}
