"""Rows that another program has written cost themselves: journals, their settings, versions, time, requests and attempts.

SQLite stores a value of any type in any column.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import Table

from onceonly.config.retention import Journal as Setting
from onceonly.formats import undecodable
from onceonly.formats.log_events import LoggedKeys
from onceonly.formats.records import encode_record
from onceonly.formats.remote import decode_request, decode_response, encode_request, encode_response
from onceonly.model.conversation import HANDLED, JournalEntry, conversation_key
from onceonly.model.errors import PermanentFailure, SchemaTooNew, SetupError, UpgradeRequired
from onceonly.model.identity import Identity, claim_key
from onceonly.model.maintenance_journal import MaintenanceJournal, TaskRun
from onceonly.model.record import Record
from onceonly.model.remote import Request, Response
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, attempt_unit, key_of
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import check, create, version_in, versions_table
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.store.journals import SqlJournals, journal_in
from onceonly.sql.store.message_journal import SCHEMA as JOURNAL_SCHEMA
from onceonly.sql.store.message_journal import TABLES, SqlMessageJournal
from onceonly.sql.store.remote_requests import SCHEMA as HTTP_SCHEMA
from onceonly.sql.store.remote_requests import OpenSqlRequest, SqlRemoteRequests, requests_table
from onceonly.sql.store.ring import SqlRing
from onceonly.sql.store.statements import record_in
from onceonly.sql.store.tables import tables
from onceonly.sql.store.time_buckets import bucketing_in, find_bucketing
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests.fuzzing import Inputs
from tests.log_events import event_in
from tests.sql.harness import ONE_EFFECT

BATCH = 500
IN_A_TABLE = 50
"""Of so many inputs one is read from a table; all are read by the function that the table's reader calls."""
NOW = 1_800_000_000_000


@pytest.fixture(autouse=True)
def _none_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecodable, "_REPORTED", LoggedKeys())


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Database]:
    """Open a SQLite file with all tables."""
    database = await open_database(f"sqlite:///{tmp_path}/foreign.db", clock=ManualClock(NOW))
    for schema in (SCHEMA, JOURNAL_SCHEMA, HTTP_SCHEMA):
        await create(database, schema)
    yield database
    await database.close()


async def put(database: Database, table: Table, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows past the library."""
    names = list(rows[0])
    statement = f"INSERT OR REPLACE INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - our own names
    async with database.writing() as connection:
        await connection.exec_driver_sql(statement, [tuple(row[name] for name in names) for row in rows])


async def empty(database: Database, *some: Table) -> None:
    """Delete all rows."""
    async with database.writing() as connection:
        for table in some:
            await connection.execute(table.delete())


def journal_tables(database: Database) -> list[Table]:
    """Return the tables of the message journal."""
    metadata = JOURNAL_SCHEMA.tables(database.prefix, database.schema)
    return [metadata.tables[f"{database.prefix}journal_{number}"] for number in range(TABLES)]


def settings(database: Database) -> Table:
    """Return the table of the journal's settings."""
    return JOURNAL_SCHEMA.tables(database.prefix, database.schema).tables[f"{database.prefix}journal_settings"]


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged as unreadable."""
    return [each for each in caplog.records if event_in(each) == "stored data unreadable"]


def entry(number: int = 1) -> JournalEntry:
    """Make an entry of a journal."""
    return JournalEntry(message=message(f"m{number}"), at=NOW, outcome=HANDLED)


@pytest.mark.parametrize(
    ("keep", "seen"), [(2**63 - 1, NOW), (0, NOW), (-5, 2**63 - 1), ("x", NOW), (b"1", b"2"), (0.5, 1e300)]
)
async def test_a_setting_that_no_process_writes_stops_no_message(
    file: Database, keep: object, seen: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Each unit reads the settings. The journal would keep what it has for ever, or fail."""
    await put(file, settings(file), [{"endpoint": "other", "keep": keep, "seen": seen}])
    setting = Setting()
    journal = SqlMessageJournal(file, "shop", setting)
    store = SqlStore(file, "shop", journal=journal)
    unit = await store.begin([message("a")])
    await unit.commit([Record(message("a").identity)])
    assert len((await journal.of_message(message("a").identity)).events) == 1
    assert journal.every == setting.keep.total_seconds() * 1000 / 8000
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("at", [2**63 - 1, "x", b"\xff", 1e300])
async def test_a_row_without_a_time_keeps_no_table_from_being_emptied(file: Database, at: object) -> None:
    """It goes with the others."""
    clock = file.clock
    assert isinstance(clock, ManualClock)
    journal = SqlMessageJournal(file, "shop", Setting())
    await journal.add([entry()])
    (current,) = [table for table in journal_tables(file) if await count(file, table)]
    await put(file, current, [row(1000, at=at)])
    clock.advance(3 * 86_400_000 // 2)
    assert await journal.rotate() == 1
    assert await count(file, current) == 0


async def count(database: Database, table: Table) -> int:
    """Count rows."""
    async with database.reading() as connection:
        return len((await connection.exec_driver_sql(f"SELECT 1 FROM {table.name}")).all())  # noqa: S608 - our own names


def row(position: int, **values: object) -> dict[str, object]:
    """Make a row of the journal as the library does."""
    of = message("m1")
    found: dict[str, object] = {"position": position, "conversation": conversation_key(of), "at": NOW, "identity": b"i" * 16}
    found |= {"parent": None, "endpoint": "shop", "type": "t", "outcome": "sent", "source": "s", "id": "i", "process": "p"}
    return found | {"attempt": None, "duration": None, "error": None, "letter": None} | values


async def test_fuzz_rows_of_the_message_journal(file: Database) -> None:
    """The good event of a conversation is shown, and the tables are emptied."""
    inputs, journal = Inputs(), SqlMessageJournal(file, "shop", Setting())
    await journal.add([entry()])
    key, (current,) = conversation_key(message("m1")), [each for each in journal_tables(file) if await count(file, each)]
    for _ in inputs.rounds(BATCH):
        rows = []
        for number in range(BATCH):
            odd = {
                name: inputs.column() for name in row(0) if name not in ("position", "conversation") and inputs.random() < 0.4
            }
            rows.append(row(1000 + number) | odd)
        await put(file, current, rows)
        assert message("m1").id in [event.identity.id for event in (await journal.conversation(key)).events]
        await journal.rotate()
        async with file.writing() as connection:
            await connection.execute(current.delete().where(current.c.position >= 1000))


async def test_fuzz_settings_of_the_message_journal(file: Database) -> None:
    """Units go on."""
    inputs = Inputs()
    for _ in inputs.rounds(BATCH):
        names = [f"e{number}" for number in range(BATCH)]
        rows = [
            {name: inputs.column() for name in ("endpoint", "keep", "seen")}
            | ({"endpoint": own} if inputs.random() < 0.8 else {})
            for own in names
        ]
        await put(file, settings(file), rows)
        journal = SqlMessageJournal(file, "shop", Setting())
        await journal.add([entry()])
        await journal.rotate()
        await empty(file, settings(file))


async def test_fuzz_rows_of_the_janitors_journals(file: Database) -> None:
    """An endpoint's janitor begins anew; others do not delete keys as long as its row cannot be read."""
    inputs, journals = Inputs(), SqlJournals(file, "shop")
    await journals.write(
        MaintenanceJournal(at=1, interval=2, retention=3, by="x", tasks={"a": TaskRun(at=1, count=3, reason="x")})
    )
    table = tables(file.prefix, file.schema).janitor
    async with file.reading() as connection:
        (plain,) = list(await connection.scalars(table.select().with_only_columns(table.c.journal)))
    for number in inputs.rounds():
        value = inputs.document(plain) if inputs.random() < 0.8 else inputs.column()
        found = journal_in("shop", value)
        assert found is None or found.overdue(NOW) >= 0
        assert found is None or all(trouble.reason for trouble in found.troubles(NOW))
        if number % IN_A_TABLE:
            continue
        await put(file, table, [{"endpoint": "shop", "journal": value}])
        assert await journals.read() == found
        assert await journals.longest_retention() == (found.retention if found else 0)
        try:
            await SqlJournals(file, "mailer").longest_retention()
        except SchemaTooNew:
            assert found is None


async def test_fuzz_versions(file: Database) -> None:
    """What is not the version of this release is a SetupError with the number."""
    inputs, table = Inputs(), versions_table(file)
    for number in inputs.rounds():
        value = inputs.choice((inputs.column(), SCHEMA.version))
        with suppress(SetupError):
            assert version_in("t", "store", value) == value
        if number % IN_A_TABLE:
            continue
        await put(file, table, [{"component": "store", "version": value}])
        try:
            await check(file, SCHEMA)
        except SetupError:
            continue
        else:
            assert value in (SCHEMA.version, str(SCHEMA.version))


async def test_fuzz_rows_of_the_ring(file: Database) -> None:
    """A second row does not count. What is no width is restored from the labels, which other rows do not hide."""
    inputs, own = Inputs(), tables(file.prefix, file.schema)
    wanted = (await SqlRing(file).bucketing()).width
    for turn in inputs.rounds():
        found = bucketing_in(inputs.column())
        assert found is None or found.start(NOW) <= NOW
        if turn % IN_A_TABLE:
            continue
        rows = [{"number": number, "width": inputs.column()} for number in (1, 2)]
        rows[0]["width"] = wanted if is_width(rows[0]["width"]) else rows[0]["width"]
        await put(file, own.ring, rows)
        found = await find_bucketing(file)
        assert found is None or found.width == wanted
        assert (await SqlRing(file).bucketing()).width == wanted
        if inputs.random() < 0.1:
            assert await SqlRing(file).buckets()


def is_width(value: object) -> bool:
    """Return whether SQLite stores it as a positive whole number: also a text that looks like one."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except ValueError:
        return False
    return number > 0 and number.is_integer() and abs(number) < 1e19


async def test_fuzz_requests(file: Database) -> None:
    """A request or a response that cannot be read is refused, its transaction ends, and the next one is executed."""
    inputs, requests = Inputs(), SqlRemoteRequests(file, "shop")
    plain = encode_request(Request(operation="Charge", body=b"{}", headers=(("x", "y"),)))
    answer = encode_response(Response(body=b"{}"))
    table = requests_table(file.prefix, file.schema)
    good = Request(operation="Charge", body=b"good")
    for number in inputs.rounds():
        stored = inputs.changed(plain) if inputs.random() < 0.8 else inputs.column()
        answered = inputs.choice((None, None, inputs.changed(answer), inputs.column()))
        for found, decode in ((stored, decode_request), (answered, decode_response)):
            with suppress(PermanentFailure, UpgradeRequired):
                decode(found if isinstance(found, bytes) else b"")
        if number % IN_A_TABLE:
            continue
        values = {"request": stored, "answer": answered, "until": NOW, "attempt": inputs.choice(("a", 5, b"\xff"))}
        await put(file, table, [{"key": key_of("shop", "bad"), "endpoint": "shop"} | values])
        try:
            opened = await requests.open(TransactionAttempt(endpoint="shop", attempt="a", max_commit=1000, key="bad"))
        except (PermanentFailure, UpgradeRequired):
            pass
        else:
            if not isinstance(opened, IdempotencyEntry):
                assert isinstance(await opened.request(), Request | None)
                opened.abandon()
        await requests.entry("bad")
        await requests.put("bad", good, NOW)
        if number % (5 * IN_A_TABLE) == 0:
            key = f"good{number}"
            assert await requests.put(key, good, NOW + 1)
            executed = await requests.open(TransactionAttempt(endpoint="shop", attempt=key, max_commit=1000, key=key))
            assert isinstance(executed, OpenSqlRequest)
            assert await executed.request() == good
            await executed.commit(None, answer)
            await requests.bury(key, NOW + 1)


async def test_fuzz_records_of_attempts(file: Database) -> None:
    """One that cannot be read was committed: its fence is refused, and that of another attempt is not."""
    inputs, store, own = Inputs(), SqlStore(file, "shop"), tables(file.prefix, file.schema).records
    of = Identity("shop", "attempt")
    plain = encode_record(Record(of, ONE_EFFECT))
    unit = attempt_unit(1000)
    for number in inputs.rounds():
        effects = inputs.changed(plain) if inputs.random() < 0.8 else inputs.column()
        with suppress(PermanentFailure, UpgradeRequired):
            assert record_in(of, effects).identity == of
        if number % IN_A_TABLE:
            continue
        known = {"key": claim_key("shop", of), "endpoint": "shop", "source": "shop", "id": "attempt", "stored_at": NOW}
        await put(file, own, [known | {"effects": effects}])
        try:
            found = await store.fence(unit, of)
        except (PermanentFailure, UpgradeRequired):
            continue
        assert found is None or found.identity == of
