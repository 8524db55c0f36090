"""A `def` handler that blocks, in the process of a web application: requests are answered meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import MetaData, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly import Endpoint
from onceonly.assembly import open_database, schemas
from onceonly.integrations.fastapi import lifespan
from onceonly.sql.schema import create, create_user_tables, drop


class Base(DeclarativeBase):
    """The user's tables."""

    metadata = MetaData()


class Report(Base):
    """What the handler writes."""

    __tablename__ = "blocking_reports"
    name: Mapped[str] = mapped_column(primary_key=True)


@dataclass
class MakeReport:
    """A command that takes its time."""

    name: str


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Name a store on SQLite and on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    return f"{request.getfixturevalue('postgresql_url')}?prefix=blocking_"


@pytest.fixture
async def store(url: str) -> AsyncIterator[str]:
    """Make its tables."""
    if url.startswith("sqlite"):
        yield url
        return
    async with open_database(url) as database:
        await create(database, *schemas("store"))
        await create_user_tables(database, Base.metadata)
        yield url
        async with database.engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)
        await drop(database, *schemas("store"))


async def wait(event: threading.Event) -> None:
    """Wait for an event of another thread."""
    while not event.is_set():  # noqa: ASYNC110 - it belongs to a thread
        await asyncio.sleep(0.01)


async def test_a_request_is_answered_while_a_def_handler_blocks(store: str, tmp_path: Path) -> None:
    """The handler waits for the very request: if it stopped the application, neither would end."""
    transport = f"sqlite:///{tmp_path}/queue.db"
    shop = Endpoint("shop", store=store, transport=transport, metadata=Base.metadata if "sqlite" in store else None)
    begun, asked, done = threading.Event(), threading.Event(), threading.Event()
    answers: list[bool] = []

    @shop.handler
    def make(command: MakeReport, session: Session) -> None:
        session.add(Report(name=command.name))
        session.flush()
        begun.set()
        answers.append(asked.wait(60))
        assert session.scalar(select(func.count()).select_from(Report)) == 1
        done.set()

    app = FastAPI(lifespan=lifespan(shop, worker=True))

    @app.get("/ask")
    async def ask() -> dict[str, bool]:
        asked.set()
        return {"begun": begun.is_set()}

    async with app.router.lifespan_context(app):
        async with shop.transaction() as tx:
            tx.send(MakeReport("sales"), to="shop")
        await wait(begun)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answer = await client.get("/ask")
        await wait(done)
    assert (answer.json(), answers) == ({"begun": True}, [True])
