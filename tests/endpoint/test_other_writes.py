"""A handler that writes through a connection of its own, which its unit does not commit, is named in a warning."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import sync_to_async
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly import Endpoint, WorkerSettings, testing
from onceonly.endpoint import other_writes
from onceonly.sql import other_connections
from onceonly.sql.statement_effects import does_write
from tests.django_project import set_up
from tests.endpoint.harness import endpoint, failure, incoming
from tests.log_events import event_in

EVENT = "handler writes outside of its transaction"


class Base(DeclarativeBase):
    """The tables of the shop."""


class Sale(Base):
    """A row."""

    __tablename__ = "sale"
    id: Mapped[str] = mapped_column(primary_key=True)


@dataclass
class Order:
    """A message."""

    id: str


@dataclass
class Refund:
    """Another one."""

    id: str


@pytest.fixture(autouse=True)
def _logs_anew() -> None:
    other_writes._logged.clear()


@pytest.fixture(scope="module")
def purchase() -> Any:
    """Set Django up with a file, and return a model with its table."""
    from django.db import connection, models  # noqa: PLC0415 - the other tests must not need it

    set_up()
    meta = type("Meta", (), {"app_label": "shop"})
    fields = {"name": models.CharField(max_length=200), "Meta": meta, "__module__": __name__}
    model: Any = type("Purchase", (models.Model,), fields)
    with connection.schema_editor() as editor:
        editor.create_model(model)
    connection.close()
    return model


def shop_in(folder: Path, **settings: Any) -> Endpoint:
    """Make an endpoint with a store of its own."""
    place = f"sqlite:///{folder}/shop.db"
    return Endpoint(**{"name": "shop", "store": place, "transport": "memory://other", "metadata": Base.metadata} | settings)


def warnings(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return endpoint, handler and what was used of each warning."""
    found = [vars(record) for record in caplog.records if event_in(record) == EVENT]
    return [(each["endpoint"], each["handler"].rpartition(".")[2], each["used"]) for each in found]


@asynccontextmanager
async def working(shop: Endpoint, handled: threading.Event, *ids: str) -> AsyncIterator[None]:
    """Run an endpoint in this process until a handler says that all of these orders are handled."""
    async with shop.running():
        async with shop.transaction() as tx:
            for each in ids:
                tx.send(Order(each), to="shop", id=each)
        assert await asyncio.to_thread(handled.wait, 60)
        yield


def threaded(folder: Path) -> Endpoint:
    """Make an endpoint whose `def` handlers run in threads."""
    worker = WorkerSettings(wait=0.05, def_handlers="thread")
    return shop_in(folder, transport=f"memory://{uuid4().hex}", worker=worker)


async def test_a_def_handler_that_writes_through_djangos_orm_is_named_once(
    purchase: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a thread of its own, with the connection that it used."""
    shop, handled = threaded(tmp_path), threading.Event()

    @shop.handler
    def place(order: Order, session: Session) -> None:
        session.add(Sale(id=order.id))
        purchase.objects.create(name=order.id)
        if purchase.objects.count() == 3:
            handled.set()

    async with working(shop, handled, "a", "b", "c"):
        pass
    assert warnings(caplog) == [("shop", "place", 'Django connection "default"')]


async def test_an_async_handler_that_writes_through_djangos_orm_is_named(
    purchase: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Through `sync_to_async`, and through Django's own asynchronous methods."""
    shop = shop_in(tmp_path)

    @shop.handler
    async def through_sync_to_async(order: Order) -> None:
        await sync_to_async(purchase.objects.create)(name=order.id)

    @shop.handler
    async def through_acreate(order: Refund) -> None:
        await purchase.objects.acreate(name=order.id)

    async with testing.run(shop) as run:
        for each in (Order("1"), Refund("2"), Order("3")):
            await run.deliver(each)
    used = 'Django connection "default"'
    assert warnings(caplog) == [("shop", "through_sync_to_async", used), ("shop", "through_acreate", used)]


async def test_reads_and_writes_outside_of_handlers_are_not_reported(
    purchase: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The control: the same connection, the same thread."""
    shop = shop_in(tmp_path)

    @shop.handler
    async def place(order: Order, session: AsyncSession) -> None:
        await sync_to_async(lambda: list(purchase.objects.filter(name=order.id)))()
        session.add(Sale(id=order.id))

    async with testing.run(shop) as run:
        await run.deliver(Order("a"))
        await sync_to_async(purchase.objects.create)(name="b")
    assert not warnings(caplog)


async def test_the_failure_of_a_def_handler_in_the_event_loop_names_the_setting_that_djangos_orm_needs(purchase: Any) -> None:
    """Django refuses to work there. In an awaited handler Django's own words are right, and nothing is added."""
    shop = endpoint(worker=WorkerSettings(def_handlers="loop"))

    @shop.handler
    def place(order: Order) -> None:
        purchase.objects.create(name=order.id)

    @shop.handler
    async def pay_back(refund: Refund) -> None:
        purchase.objects.create(name=refund.id)

    first, second = await failure(shop), await failure(shop, incoming(type_="Refund"))
    assert first.reason.startswith("SynchronousOnlyOperation: You cannot call this from an async context")
    assert 'WorkerSettings(def_handlers="thread")' in first.reason
    assert second.reason.startswith("SynchronousOnlyOperation: You cannot call this from an async context")
    assert "WorkerSettings" not in second.reason


Use = Callable[[AsyncEngine, str], Awaitable[None]]


async def _session(engine: AsyncEngine, id_: str) -> None:
    async with AsyncSession(engine) as session:
        session.add(Sale(id=id_))
        await session.commit()


async def _core(engine: AsyncEngine, id_: str) -> None:
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO sale (id) VALUES (:id)"), {"id": id_})


async def _sync_engine(engine: AsyncEngine, id_: str) -> None:
    def write() -> None:
        own = create_engine(f"sqlite:///{engine.url.database}")
        with own.begin() as connection:
            connection.execute(text("INSERT INTO sale (id) VALUES (:id)"), [{"id": id_}, {"id": f"{id_}2"}])
        own.dispose()

    await asyncio.to_thread(write)


async def _reads(engine: AsyncEngine, _: str) -> None:
    async with engine.connect() as connection:
        await connection.execute(text("SELECT id FROM sale"))


@pytest.fixture
async def other(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    """Make a database of the application's own, with its table."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/other.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield engine
    await engine.dispose()


@pytest.mark.parametrize("use", [_session, _core, _sync_engine])
async def test_a_handler_that_writes_through_another_engine_is_named(
    use: Use, other: AsyncEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the database, and without what is written."""
    shop = shop_in(tmp_path)

    @shop.handler
    async def place(order: Order, session: AsyncSession) -> None:
        session.add(Sale(id=order.id))
        await use(other, order.id)

    async with testing.run(shop) as run:
        await run.deliver(Order("a"))
        await run.deliver(Order("b"))
    assert warnings(caplog) == [("shop", "place", f"SQLAlchemy connection to sqlite:///{tmp_path}/other.db")]


async def test_a_second_session_of_the_stores_own_engine_is_reported_and_the_injected_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The usual mistake: the handler opens the session that it used to open.

    Only PostgreSQL and MariaDB let it write while the unit does. In SQLite the unit has the lock until it has ended, so
    this handler writes to a temporary table.
    """
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with engine.begin() as connection:
        await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        await connection.run_sync(Base.metadata.create_all)
    shop = shop_in(tmp_path, store=engine, worker=WorkerSettings(batch_size=1))

    @shop.handler
    async def right(order: Order, session: AsyncSession) -> None:
        session.add(Sale(id=order.id))
        await session.flush()
        await session.execute(text("UPDATE sale SET id = id"))

    @shop.handler
    async def wrong(_: Refund) -> None:
        async with engine.connect() as connection:
            await connection.execute(text("CREATE TEMPORARY TABLE mine (id TEXT)"))

    async with testing.run(shop, own_store=True) as run:
        for each in (Order("a"), Refund("b"), Order("c")):
            await run.deliver(each)
    await engine.dispose()
    assert warnings(caplog) == [("shop", "wrong", f"SQLAlchemy connection to sqlite:///{tmp_path}/shop.db")]


async def test_a_handler_that_reads_through_another_engine_is_not_reported(
    other: AsyncEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither are writes of the same engine while no handler runs."""
    shop = shop_in(tmp_path)

    @shop.handler
    async def place(order: Order) -> None:
        await _reads(other, order.id)

    async with testing.run(shop) as run:
        await run.deliver(Order("a"))
        await _session(other, "b")
    assert not warnings(caplog)


async def test_the_statements_that_are_not_reported_are_looked_at(
    other: AsyncEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a watch that takes reads for writes reports the handler that only reads."""
    monkeypatch.setattr(other_connections, "does_write", lambda _: True)
    shop = shop_in(tmp_path)

    @shop.handler
    async def place(order: Order) -> None:
        await _reads(other, order.id)

    async with testing.run(shop) as run:
        await run.deliver(Order("a"))
    assert warnings(caplog) == [("shop", "place", f"SQLAlchemy connection to sqlite:///{tmp_path}/other.db")]


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("INSERT INTO a VALUES (1)", True),
        ("/* orders */ update a set b = 1", True),
        ("-- orders\nDELETE FROM a", True),
        ("WITH b AS (SELECT 1) INSERT INTO a SELECT * FROM b", True),
        ("WITH b AS (DELETE FROM a RETURNING x) SELECT * FROM b", True),
        ("WITH b AS (SELECT 1) SELECT * FROM b FOR UPDATE", False),
        ("SELECT a FROM updates", False),
        ("SAVEPOINT a", False),
        ("SET LOCAL lock_timeout = 1", False),
        ("CREATE TABLE a (b INT)", True),
        ("MERGE INTO a USING b ON a.x = b.x WHEN MATCHED THEN DELETE", True),
        ("", False),
    ],
)
def test_what_writes(statement: str, *, writes: bool) -> None:
    """By the text alone."""
    assert does_write(statement) is writes


PROGRAM = """
import asyncio, sys
from onceonly import Endpoint, testing
shop = Endpoint("shop", store="sqlite:///{folder}/a.db", transport="memory://x")
@shop.handler(type="a")
async def a(body: dict) -> None: ...
async def main():
    async with testing.run(shop) as run:
        await run.deliver(run.message({{}}, type="a"))
"""
"""Handles one message."""


def test_django_is_not_imported_for_an_application_that_has_not(tmp_path: Path) -> None:
    """In a process of its own."""
    program = PROGRAM.format(folder=tmp_path) + "asyncio.run(main())\nassert 'django' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_django_without_settings_is_no_failure(tmp_path: Path) -> None:
    """Libraries import it for what an application may use."""
    program = PROGRAM.format(folder=tmp_path) + "import django.db\nasyncio.run(main())"
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)
