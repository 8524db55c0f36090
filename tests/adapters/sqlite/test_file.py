"""A database file that is deleted or replaced under its users: nothing is acknowledged and lost, and work goes on later."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from onceonly import Endpoint
from onceonly.adapters.sqlite.file import DatabaseFile, FileReplaced
from onceonly.model.errors import OutcomeUnknown, RetryableError
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology
from onceonly.sql.database import Source
from onceonly.sql.queue import SCHEMA, SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SqlStore
from tests.log_events import events
from tests.sql.harness import add, look, messages, opened, orders, records, url

PATIENCE = 30.0
A, B = messages(2)


def files_of(file: Path) -> list[Path]:
    """Return the database and the files beside it that are there."""
    return [each for each in (file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))) if each.exists()]


def delete(file: Path) -> None:
    """Delete the file, and those beside it."""
    for each in files_of(file):
        each.unlink()


def empty(file: Path) -> None:
    """Put an empty file in its place."""
    delete(file)
    file.touch()


def copy(file: Path) -> None:
    """Put a copy in its place, as a restored backup."""
    with sqlite3.connect(file) as source, sqlite3.connect(f"{file}.copy") as target:
        source.backup(target)
    source.close()
    target.close()
    delete(file)
    Path(f"{file}.copy").rename(file)


def rename(file: Path) -> None:
    """Rename the file, and those beside it."""
    for each in files_of(file):
        each.rename(f"{each}.away")


def bring_back(file: Path) -> None:
    """Undo `rename`."""
    for each in file.parent.glob(f"{file.name}*.away"):
        each.rename(each.with_suffix(""))


def size_of(file: Path) -> int | None:
    """Return the size of a file; None where there is none."""
    return file.stat().st_size if file.exists() else None


LOSING = [delete, empty, rename]


@asynccontextmanager
async def a_store(source: Source) -> AsyncIterator[SqlStore]:
    """Open a store on a file with all tables."""
    async with opened(source, tables=True) as database:
        yield SqlStore(database, "shop")


@pytest.fixture(params=["url", "engine"])
async def source(request: pytest.FixtureRequest, file: Path) -> AsyncIterator[Source]:
    """Return the file by its URL, and by an engine of the user's."""
    if request.param == "url":
        yield url(file)
        return
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args={"timeout": 5})
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("lose", [*LOSING, copy])
async def test_a_unit_on_a_file_that_is_lost_is_not_committed(source: Source, file: Path, lose: Callable[[Path], None]) -> None:
    """The outcome is OutcomeUnknown: the commit went into a file that nobody can open."""
    async with a_store(source) as store:
        unit = await store.begin([A])
        await add(unit, "a")
        lose(file)
        with pytest.raises(OutcomeUnknown, match="while in use"):
            await unit.commit(records(A))


@pytest.mark.parametrize("lose", LOSING)
async def test_a_file_that_is_lost_is_away_and_not_made_anew(file: Path, lose: Callable[[Path], None]) -> None:
    """It had tables: an empty one would take every copy for new. What to do is in the error."""
    async with a_store(url(file)) as store:
        unit = await store.begin([A])
        lose(file)
        with pytest.raises(OutcomeUnknown):
            await unit.commit(records(A))
        for _ in range(3):
            with pytest.raises(RetryableError, match=r"restore it|restore the right file"):
                await store.begin([A])
        assert size_of(file) == (0 if lose is empty else None)


async def test_work_goes_on_when_the_file_is_back(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With what was committed before, and none of what was not; one error is logged."""
    async with a_store(url(file)) as store:
        first = await store.begin([B])
        await add(first, "b")
        await first.commit(records(B))
        unit = await store.begin([A])
        rename(file)
        with caplog.at_level(logging.ERROR), pytest.raises(OutcomeUnknown):
            await unit.commit(records(A))
        with pytest.raises(RetryableError):
            await store.begin([A])
        bring_back(file)
        assert list(await look(store, B)) == ["done"]
        unit = await store.begin([A])
        for_new = [each.id for each in unit.found.new]
        await add(unit, *for_new)
        await unit.commit(records(*unit.found.new))
        assert list(await look(store, A, B)) == ["done"]
    assert events(caplog.records) == ["database file deleted or replaced"]


async def test_every_connection_of_the_pool_is_made_anew(file: Path) -> None:
    """One finds it out; the others were opened on the same file."""
    async with opened(url(file), tables=True) as database:
        store = SqlStore(database, "shop")
        async with database.reading(), database.reading():
            unit = await store.begin([A])
        copy(file)
        with pytest.raises(OutcomeUnknown):
            await unit.commit(records(A))
        for number in range(4):
            unit = await store.begin([B] if not number else [])
            await add(unit, f"row-{number}")
            await unit.commit(records(*unit.found.new))
        with sqlite3.connect(file) as plain:
            assert plain.execute("SELECT count(*) FROM orders").fetchone() == (4,)
        plain.close()
        assert await orders(database) == [f"row-{number}" for number in range(4)]


@pytest.mark.parametrize("which", ["-wal", "-shm"])
async def test_the_files_beside_it_are_looked_at_as_well(file: Path, which: str) -> None:
    """What is committed is in the write-ahead log before it is in the database."""
    async with a_store(url(file)) as store:
        unit = await store.begin([A])
        await unit.commit(records(A))
        unit = await store.begin([B])
        file.with_name(file.name + which).unlink()
        with pytest.raises(OutcomeUnknown, match=f"{which} was deleted"):
            await unit.commit(records(B))


@pytest.mark.parametrize("call", ["send", "receive", "ack", "look"])
@pytest.mark.parametrize("lose", [*LOSING, copy])
async def test_a_queue_on_a_file_that_is_lost_takes_and_settles_nothing(
    file: Path, lose: Callable[[Path], None], call: str
) -> None:
    """Whatever it is asked for; an idle receiver finds it out as well."""
    async with opened(url(file)) as database:
        await create(database, SCHEMA)
        queue = SqlTransport(database, "shop")
        await queue.declare([Topology(endpoint="shop")])
        if call in {"receive", "ack"}:
            await queue.send([Send(message=A, to="shop")])
        taken = await queue.receive(1, 0.0) if call == "ack" else ()
        lose(file)
        with pytest.raises(RetryableError):
            await {
                "send": lambda: queue.send([Send(message=B, to="shop")]),
                "receive": lambda: queue.receive(1, 0.0),
                "ack": lambda: queue.ack(taken),
                "look": lambda: queue.receive(1, 0.0),
            }[call]()


@dataclass
class PlaceOrder:
    """Place an order."""

    order_id: str


@pytest.mark.parametrize("which", ["store", "queue"])
@pytest.mark.parametrize("lose", [rename, copy])
async def test_no_message_is_acknowledged_and_lost(tmp_path: Path, lose: Callable[[Path], None], which: str) -> None:
    """A worker handles messages while its file goes; plain SQL on what is left finds each of them handled once."""
    shop_file, queue_file = tmp_path / "shop.db", tmp_path / "queue.db"
    lost = shop_file if which == "store" else queue_file
    shop = Endpoint("shop", store=url(shop_file), transport=f"{url(queue_file)}?lease=2")
    reached, may_go = asyncio.Event(), asyncio.Event()

    @shop.handler
    async def place(order: PlaceOrder, session: AsyncSession) -> None:
        await (await session.connection()).exec_driver_sql("INSERT INTO placed VALUES (?)", (order.order_id,))
        if order.order_id == "m9":
            reached.set()
            await may_go.wait()

    with sqlite3.connect(shop_file) as plain:
        plain.execute("CREATE TABLE placed (id TEXT)")
    plain.close()
    async with shop.running():
        async with asyncio.timeout(PATIENCE), opened(url(queue_file)) as database:
            sender = SqlTransport(database, "shop")
            bodies = [Send(message=order(number), to="shop") for number in range(40)]
            await sender.send(bodies[:20])
            await reached.wait()
        lose(lost)
        may_go.set()
        await asyncio.sleep(0.3)  # several rounds on the file that is gone
        if lose is rename:
            bring_back(lost)
        async with opened(url(queue_file)) as database:
            async with asyncio.timeout(PATIENCE):
                await SqlTransport(database, "shop").send(bodies[20:])
                await until(shop_file, "SELECT count(DISTINCT id) FROM placed", 40)
                await until(queue_file, "SELECT count(*) FROM onceonly_messages", 0)
    assert rows(shop_file, "SELECT count(*), count(DISTINCT id) FROM placed") == [(40, 40)]


def order(number: int) -> Message:
    """Make a message to the shop."""
    return Message(id=f"m{number}", source="test", type="PlaceOrder", body=b'{"order_id":"m%d"}' % number)


async def until(file: Path, query: str, number: int) -> None:
    """Wait until plain SQL finds this number."""
    while rows(file, query) != [(number,)]:  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(0.05)


def rows(file: Path, query: str) -> list[tuple[object, ...]]:
    """Ask a file by plain SQL."""
    plain = sqlite3.connect(file)
    try:
        return plain.execute(query).fetchall()
    finally:
        plain.close()


def test_a_file_that_is_replaced_while_it_is_opened_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path leads elsewhere before its connection is used."""
    file = tmp_path / "shop.db"
    sqlite3.connect(file).execute("CREATE TABLE t (a)").connection.close()
    connect = sqlite3.connect

    def replaced(*arguments: object, **options: object) -> sqlite3.Connection:
        connection = connect(*arguments, **options)  # type: ignore[call-overload]
        shutil.copy(file, f"{file}.copy")
        Path(f"{file}.copy").rename(file)
        return connection

    watched = DatabaseFile(file)
    watched.open().connection.close()
    monkeypatch.setattr(sqlite3, "connect", replaced)
    with pytest.raises(FileReplaced, match="was replaced"):
        watched.open()
