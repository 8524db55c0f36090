"""An engine of the user's own that has connections of another event loop: a wrong set-up, not an outage."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.event import listen, remove
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from onceonly import Endpoint
from onceonly.model.errors import SetupError, WrongEventLoop
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.translation import check_loop
from onceonly_conformance.clock import ManualClock
from tests.adapters.rabbitmq.harness import until
from tests.log_events import events
from tests.sql.conftest import place_named
from tests.sql.every_database import emptied
from tests.sql.harness import messages

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning",  # a driver cannot close a connection of another event loop
    "ignore:unclosed:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
ASKS_FOR = "has connections of another event loop"
ENDED = {"worker failed", "relay failed", "janitor failed"}


@dataclass
class Order:
    """A message."""

    id: str


@contextmanager
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def use(engine: AsyncEngine) -> None:
    """Use it, so that its pool has a connection of this event loop."""
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))


async def use_elsewhere(engine: AsyncEngine, loop: asyncio.AbstractEventLoop) -> None:
    """Use it in the other loop."""
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(use(engine), loop))


@asynccontextmanager
async def engine_of(place: str) -> AsyncIterator[AsyncEngine]:
    """Make a user's engine for a database that has the tables."""
    async with emptied(place) as database:
        engine = create_async_engine(database.engine.url)
        yield engine
        await engine.dispose(close=False)
    gc.collect()  # what is left behind warns here, and not in another test


@pytest.fixture(params=["postgresql+asyncpg", "mariadb"])
def bound(request: pytest.FixtureRequest, file: Path) -> str:
    """Name a place whose driver's connections stay in their event loop. psycopg's and aiosqlite's can be used elsewhere."""
    return place_named(request.param, request, file)


@pytest.fixture
async def engine(bound: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[AsyncEngine]:
    """Make an engine for it. The tables have no prefix.

    The pool logs connections that it could not close, and pytest keeps these records. After the last test of a process their
    warnings would be errors that nothing filters, and pytest-xdist would report a crash.
    """
    async with engine_of(bound.partition("?")[0]) as made:
        yield made
    caplog.get_records("call").clear()
    gc.collect()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_an_endpoint_with_such_an_engine_does_not_start(engine: AsyncEngine, is_closed: bool) -> None:  # noqa: FBT001 - pytest's way
    """Whether or not that event loop still runs. It would be retried forever, as if the server were away."""
    shop = Endpoint("shop", store=engine, transport="memory://loops")
    shop.handler(_place)

    async def run() -> None:
        async with shop.running():
            raise AssertionError("it runs")

    with other_loop() as loop:
        await use_elsewhere(engine, loop)
        if not is_closed:
            with pytest.raises(SetupError, match=ASKS_FOR):
                await run()
    if is_closed:
        with pytest.raises(SetupError, match=ASKS_FOR):
            await run()


async def test_an_engine_that_was_disposed_of_in_its_event_loop_can_be_used_in_another(engine: AsyncEngine) -> None:
    """As the error says."""
    with other_loop() as loop:
        await use_elsewhere(engine, loop)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(engine.dispose(), loop))
    database = await open_database(engine, clock=ManualClock())
    await begin(database)
    await database.close()


async def test_drivers_whose_connections_can_be_used_elsewhere_just_work(place: str) -> None:
    """And those that cannot raise what says so."""
    async with engine_of(place.partition("?")[0]) as made:
        with other_loop() as loop:
            await use_elsewhere(made, loop)
            database = await open_database(made, clock=ManualClock())
            if made.dialect.driver in {"aiosqlite", "psycopg", "psycopg_async"}:
                await begin(database)
            else:
                with pytest.raises(WrongEventLoop):
                    await begin(database)
            await database.close()


@pytest.mark.parametrize("runs", ["running", "sending"])
async def test_what_runs_ends_with_it(file: Path, runs: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker and a relay do, and an application's block raises it. aiosqlite has no such error, so the test raises it."""
    async with engine_of(f"sqlite:///{file}") as made:
        shop = Endpoint("shop", store=made, transport="memory://loops", relay_after=0.05)
        if runs == "running":
            shop.handler(_place)

        def refuse(*_: object) -> None:
            raise RuntimeError("Task <Task pending> got Future <Future pending> attached to a different loop")

        async def run() -> None:
            async with getattr(shop, runs)():
                listen(made.sync_engine, "before_cursor_execute", refuse)
                await until(lambda: bool(ENDED & {*events(caplog.records)}))

        with pytest.raises(WrongEventLoop, match=ASKS_FOR):
            await run()
        remove(made.sync_engine, "before_cursor_execute", refuse)


async def begin(database: Database) -> None:
    """Begin a unit, and give it up."""
    await create(database, SCHEMA)
    unit = await SqlStore(database, "shop").begin(messages(1))
    unit.abandon()


@pytest.mark.parametrize(
    "words",
    [
        "Task <Task pending> got Future <Future pending> attached to a different loop",
        "<asyncio.locks.Lock object at 0x7f> is bound to a different event loop",
        "The future belongs to a different loop than the one specified as the loop argument",
        "Event loop is closed",
    ],
)
def test_what_asyncio_says_of_another_event_loop_is_known(words: str) -> None:
    """In all its variants. A driver's own error is not one."""
    for kind in (RuntimeError, ValueError):
        with pytest.raises(WrongEventLoop, match=ASKS_FOR):
            check_loop(kind(words))
    check_loop(OSError(words))
    check_loop(RuntimeError("something else"))


async def _place(_order: Order) -> None:
    return
