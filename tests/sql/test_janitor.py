"""What janitors share in each SQL database: who leads, what was done, and the keys of clients that nobody needs any more."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from time import perf_counter

import pytest
from sqlalchemy import func, insert, inspect, select, text

from onceonly import Endpoint, History
from onceonly.adapters.mariadb.maintenance import LOCK_NAME
from onceonly.assembly import wire
from onceonly.config.endpoint import Settings
from onceonly.endpoint.host import host_of
from onceonly.model.errors import SchemaTooNew
from onceonly.model.maintenance_journal import LateBucket, MaintenanceJournal, TaskRun
from onceonly.ports.bundle import Ports
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.sql.database import Database
from onceonly.sql.store import SqlJournals, SqlKeys, SqlRing
from onceonly.sql.store.measurements import SampleSize, measure
from onceonly.sql.store.tables import tables
from onceonly.sql.transaction import DatabaseTransaction
from tests.sql.every_database import emptied

JOURNAL = MaintenanceJournal(
    at=5,
    interval=60_000,
    retention=7,
    by="here:1",
    tasks={"recycling slots": TaskRun(at=5, took=3, count=1, failing_since=4, reason="CommitFailed: no")},
    late=(LateBucket(number=3, late=9, reason="no process ran the task", stops=True),),
)

_TERMINATE = (
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@pytest.fixture
async def database(place: str) -> AsyncIterator[Database]:
    """Open each database with empty tables."""
    async with emptied(place) as database:
        yield database


async def keys(database: Database) -> int:
    """Count the keys of clients."""
    async with database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(tables(database.prefix, database.schema).keys)) or 0


async def store_keys(database: Database, *stored_at: int) -> None:
    """Keep answers that were stored at these instants."""
    rows = [
        {"key": bytes([0, number // 256, number % 256, *bytes(13)]), "fingerprint": bytes(16), "attempt": "a", "stored_at": at}
        for number, at in enumerate(stored_at)
    ]
    async with database.writing() as connection:
        await connection.execute(insert(tables(database.prefix, database.schema).keys), rows)


async def test_a_journal_is_read_as_it_was_written(database: Database) -> None:
    """By every process; the last one stays, and each endpoint has its own."""
    journals = SqlJournals(database, "shop")
    assert await journals.read() is None
    await journals.write(MaintenanceJournal(at=1, interval=1))
    await journals.write(JOURNAL)
    await SqlJournals(database, "mailer").write(MaintenanceJournal(at=9, interval=1, retention=8))
    assert await SqlJournals(database, "shop").read() == JOURNAL
    assert await journals.longest_retention() == 8


async def test_an_unreadable_journal_stops_no_janitor_and_removes_no_keys_of_its_endpoint(database: Database) -> None:
    """The endpoint's own janitor replaces it. Until then others do not know for how long its keys are kept."""
    async with database.writing() as connection:
        table = tables(database.prefix, database.schema).janitor
        await connection.execute(insert(table), {"endpoint": "shop", "journal": b'{"version": 9}'})
    journals, others = SqlJournals(database, "shop"), SqlJournals(database, "mailer")
    assert await journals.read() is None
    assert await journals.longest_retention() == 0
    with pytest.raises(SchemaTooNew, match="janitor journal of endpoint 'shop' cannot be read, so no keys"):
        await others.longest_retention()
    await journals.write(JOURNAL)
    assert await others.longest_retention() == JOURNAL.retention


async def test_keys_go_page_by_page_once_they_are_old(database: Database) -> None:
    """The oldest first, and none that is young."""
    await store_keys(database, *range(100, 350), 1000)
    removing = SqlKeys(database)
    assert await removing.remove_keys(1000, 100) == 100
    assert [await removing.remove_keys(1000, 100) for _ in range(3)] == [100, 50, 0]
    assert await keys(database) == 1


async def test_one_process_leads_at_a_time(server: str) -> None:
    """The lock is the database's: another connection sees it."""
    async with emptied(server) as one, emptied(server) as other:
        async with SqlRing(one).leading() as leads:
            assert leads
            async with SqlRing(other).leading() as too:
                assert not too
        async with SqlRing(other).leading() as leads:
            assert leads


async def test_the_lock_is_free_at_the_end_however_long_its_return_takes(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for the database: who comes next leads."""
    end = DatabaseTransaction.end

    async def end_late(transaction: DatabaseTransaction) -> None:
        await asyncio.sleep(0.2)
        await end(transaction)

    async with emptied(server) as one, emptied(server) as other:
        assert await may_lead(other)  # its first transaction is behind it
        monkeypatch.setattr(DatabaseTransaction, "end", end_late)
        assert await may_lead(one)
        assert await may_lead(other)


async def test_another_leads_when_the_leader_dies(server: str) -> None:
    """Its connection is cut off, as that of a process that was killed; its end harms nobody."""
    async with emptied(server) as one, emptied(server) as other:
        ring, began, over = SqlRing(one), asyncio.Event(), asyncio.Event()
        dying = asyncio.create_task(lead(ring, began, over))
        await began.wait()
        assert not await may_lead(other)
        await cut_off_the_leader(other, ring._name)
        async with asyncio.timeout(30):
            while not await may_lead(other):  # noqa: ASYNC110 - the server ends a session in its own time
                await asyncio.sleep(0.01)
        over.set()
        await dying
        assert await may_lead(one)


async def lead(ring: SqlRing, began: asyncio.Event, over: asyncio.Event) -> None:
    """Lead for a while."""
    async with ring.leading() as leads:
        assert leads
        began.set()
        await over.wait()


async def may_lead(database: Database) -> bool:
    """Tell whether somebody who comes now leads."""
    async with SqlRing(database).leading() as leads:
        return leads


async def cut_off_the_leader(database: Database, name: str) -> None:
    """Have the server end the connection that holds the lock."""
    async with database.engine.connect() as connection:
        if database.dialect.name == "postgresql":
            assert (await connection.execute(text(_TERMINATE))).scalar_one()
        else:
            holder = f"SELECT IS_USED_LOCK({LOCK_NAME})"
            thread = (await connection.execute(text(holder), {"name": f"{name} leader"})).scalar_one()
            await connection.execute(text(f"KILL {int(thread)}"))


@pytest.fixture
async def ports(place: str) -> AsyncIterator[Ports]:
    """Wire an endpoint whose store is in each database."""
    async with emptied(place):
        pass
    settings = Settings(name="shop", store=place, transport="memory://janitor", deduplication=History(timedelta(days=1)))
    shop = Endpoint("shop", store=place, transport="memory://janitor")

    @shop.handler(type="order")
    async def order(body: dict[str, int]) -> None:
        """Do nothing."""

    handlers = host_of(shop).handlers(settings=settings)
    async with wire(settings, lambda _traits, _blobs: handlers) as ports:
        yield ports


async def test_a_round_does_all_of_it_and_is_written_down(ports: Ports) -> None:
    """What the next process reads."""
    journal = await MaintenanceLoop(ports, grace=5.0).clean_up()
    assert journal is not None
    assert not journal.is_failing(), journal
    assert journal.retention == 86_400_000
    assert list(journal.tasks) == [
        "sending old records",
        "recycling slots",
        "removing expired claims",
        "removing old actions",
        "removing expired keys",
        "removing abandoned run markers",
        "removing ended processes",
        *(["shrinking the log"] if ports.maintenance.log is not None else []),
    ]
    assert ports.maintenance.journals is not None
    assert await ports.maintenance.journals.read() == journal


async def test_two_rounds_at_once_do_all_of_it(ports: Ports) -> None:
    """One after the other, or one of them leaves it to the other; nothing fails."""
    journals = await asyncio.gather(*(MaintenanceLoop(ports, grace=5.0).clean_up() for _ in range(3)))
    done = [journal for journal in journals if journal is not None]
    assert done
    assert not any(journal.is_failing() for journal in done)


async def test_what_claims_and_tokens_take_is_measured_and_nothing_is_left(database: Database) -> None:
    """Between what the values alone would take and what the promise of the ring allows."""

    async def names() -> list[str]:
        async with database.reading() as connection:
            return sorted(await connection.run_sync(lambda it: inspect(it).get_table_names()))

    before = await names()
    found = await measure(database, SampleSize(10_000, 500.0, 1_700_000_000_000), name="test", seconds=perf_counter)
    assert await names() == before
    assert 24 < found.bucket.bytes / found.rows < 160  # MariaDB reserves a mebibyte at a time
    assert found.bucket.bytes <= found.arrivals.bytes
    assert 16 < found.tokens.bytes / found.rows < 160
    assert min(found.bucket.eviction, found.arrivals.eviction, found.tokens.eviction) > 0
