"""A process-scoped provider that keeps the session, a connection or an object of a handler is named in a warning."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly import Endpoint, testing
from onceonly.endpoint.kept_resources import MOST_OBJECTS
from tests.log_events import event_in

KEEPS = "process-scoped provider keeps what ends with a handler"


class Base(DeclarativeBase):
    """The user's tables."""


class Account(Base):
    """A row."""

    __tablename__ = "account"
    name: Mapped[str] = mapped_column(primary_key=True)


@dataclass
class Order:
    """A message."""

    id: str


@dataclass
class Cache:
    """An object that lives as long as the process."""

    session: object = None
    things: dict[str, Any] = field(default_factory=dict)
    nested: "Cache | None" = None


def shop_in(folder: Path) -> tuple[Endpoint, Cache]:
    """Make an endpoint with a provider of a cache."""
    shop, cache = Endpoint("shop", store=f"sqlite:///{folder}/a.db", transport="memory://kept", metadata=Base.metadata), Cache()

    @shop.provide
    def make_cache() -> Cache:
        return cache

    return shop, cache


async def keeps_its_session(_: Order, session: AsyncSession, cache: Cache) -> None:
    """Keep the session."""
    cache.session = session


async def keeps_its_connection(_: Order, connection: AsyncConnection, cache: Cache) -> None:
    """Keep the connection, further inside."""
    cache.nested = Cache(things={"connection": connection})


async def keeps_a_new_object(_: Order, session: AsyncSession, cache: Cache) -> None:
    """Keep an object that is inserted."""
    account = cache.things["a"] = Account(name="a")
    session.add(account)


async def keeps_a_loaded_object(_: Order, session: AsyncSession, cache: Cache) -> None:
    """Keep an object in a list."""
    session.add(Account(name="a"))
    await session.flush()
    cache.things["all"] = [await session.get_one(Account, "a")]


def keeps_its_session_in_a_thread(_: Order, session: Session, cache: Cache) -> None:
    """Keep it in a `def` handler."""
    cache.session = session


def keeps_its_connection_in_a_thread(_: Order, connection: Connection, cache: Cache) -> None:
    """Keep it in a `def` handler."""
    cache.session = connection


@pytest.mark.parametrize(
    ("handler", "kept"),
    [
        (keeps_its_session, "AsyncSession"),
        (keeps_its_connection, "AsyncConnection"),
        (keeps_a_new_object, "Account"),
        (keeps_a_loaded_object, "Account"),
        (keeps_its_session_in_a_thread, "Session"),
        (keeps_its_connection_in_a_thread, "HandlerConnection"),
    ],
)
async def test_what_a_provider_keeps_is_logged(
    tmp_path: Path, handler: Any, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With the names of the provider and the handler."""
    shop, _ = shop_in(tmp_path)
    shop.handler(handler)
    async with testing.run(shop) as run:
        await run.deliver(Order("1"))
    (record,) = [each for each in caplog.records if event_in(each) == KEEPS]
    fields = vars(record)
    assert fields["provider"].endswith("shop_in.make_cache")
    assert fields["handler"].endswith(handler.__name__)
    assert fields["kept"] == kept


async def uses_it_and_lets_it_go(_: Order, session: AsyncSession, cache: Cache) -> None:
    """Use the session, and keep only values."""
    cache.session = session
    session.add(account := Account(name="a"))
    await session.flush()
    cache.things["names"] = [account.name]
    cache.session = None


async def keeps_an_object_without_a_session(_: Order, cache: Cache) -> None:
    """Keep an object that was never added."""
    cache.things["a"] = Account(name="a")


async def fills_a_large_cache(_: Order, session: AsyncSession, cache: Cache) -> None:
    """Keep the session among more things than are searched."""
    cache.things = {str(number): session for number in range(MOST_OBJECTS + 1)}


@pytest.mark.parametrize("handler", [fills_a_large_cache, uses_it_and_lets_it_go, keeps_an_object_without_a_session])
async def test_a_provider_that_keeps_nothing_of_a_handler_is_not_logged(
    tmp_path: Path, handler: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever else it keeps."""
    shop, cache = shop_in(tmp_path)
    cache.nested = cache  # a circle ends the search
    shop.handler(handler)
    async with testing.run(shop) as run:
        await run.deliver(Order("1"))
    assert KEEPS not in map(event_in, caplog.records)
