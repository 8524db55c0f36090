"""The message journal on each SQL database: in the unit's transaction, bounded in rows and in time."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from sqlalchemy import text

from onceonly.config.journal import Journal
from onceonly.conformance.clock import ManualClock
from onceonly.conformance.samples import message
from onceonly.model.conversation import HANDLED, SENT, conversation_key, message_key
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import JOURNAL_SCHEMA, SCHEMA, SqlMessageJournal, SqlStore
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
