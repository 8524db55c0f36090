"""Errors about a user's own engine name its URL, and never its password."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from onceonly import Endpoint, SetupError
from onceonly.config.location import locate, shown
from onceonly.errors import CommitFailed, OutcomeUnknown
from tests.servers.available import free_port

PLACE = "me:s%40cret@db.example:5432/shop?ssl=require"


class Elsewhere(AsyncEngine):
    """An engine of a database or driver that there is no adapter for."""

    def __init__(self, url: str) -> None:
        """Connect to nothing: no such driver has to be installed."""
        self._url = make_url(url)

    @property
    def url(self) -> URL:
        """Return the URL."""
        return self._url


def shop_at(store: object) -> Endpoint:
    """Make an endpoint with a handler."""
    shop = Endpoint("shop", store=store, transport="memory://x")

    @shop.handler(type="Any")
    async def take(message: bytes) -> None:
        """Do nothing."""

    return shop


def made(place: str) -> Any:
    """Make an asynchronous engine of PostgreSQL."""
    return create_async_engine(f"postgresql+asyncpg://{place}")


@pytest.mark.parametrize("role", ["store", "dead_letters"])
@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (
            lambda: create_engine(f"postgresql+psycopg://{PLACE}"),
            "='Engine(postgresql+psycopg://db.example:5432/shop)' is synchronous. Create it with create_async_engine",
        ),
        (
            lambda: sessionmaker(create_engine(f"postgresql+psycopg://{PLACE}")),
            "='sessionmaker(postgresql+psycopg://db.example:5432/shop)' is synchronous. Create it with async_sessionmaker",
        ),
        (
            lambda: Elsewhere(f"oracle+oracledb://{PLACE}"),
            "='Elsewhere(oracle+oracledb://db.example:5432/shop)': unknown URL scheme",
        ),
        (
            lambda: Elsewhere(f"mysql+aiomysql://{PLACE}"),
            "='Elsewhere(mysql+aiomysql://db.example:5432/shop)': no adapter for this driver of MariaDB; use",
        ),
        (async_sessionmaker, " is an async_sessionmaker without an engine. Bind it: async_sessionmaker(engine)"),
    ],
)
def test_an_engine_that_cannot_be_used_is_named_with_its_url(role: str, engine: Callable[[], Any], words: str) -> None:
    """So that a program with several engines shows which of them is wrong."""
    places: dict[str, Any] = {"store": "memory://x"} | {role: engine()}
    with pytest.raises(SetupError) as caught:
        Endpoint("shop", transport="memory://x", **places)
    assert f"{role}{words}" in str(caught.value)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("wrap", [made, lambda place: async_sessionmaker(made(place))])
async def test_an_engine_whose_server_is_away_is_named_with_its_url(wrap: Callable[[str], Any]) -> None:
    """Also by a transaction that opens the endpoint for itself."""
    port = free_port()
    engine = wrap(f"me:secret@127.0.0.1:{port}/shop")
    shop = shop_at(engine)
    where = f"store {type(engine).__name__}(postgresql+asyncpg://127.0.0.1:{port}/shop)"
    with pytest.raises((OutcomeUnknown, CommitFailed)) as caught:
        async with shop.opened():
            """Not reached."""
    assert where in str(caught.value)
    with pytest.raises(CommitFailed) as caught:
        async with shop.transaction():
            """Not reached."""
    assert where in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["postgresql+asyncpg", "postgresql+psycopg", "postgresql+psycopg_async", "mariadb+asyncmy"])
def test_an_engine_with_a_supported_driver_is_taken(name: str) -> None:
    """Also by the other name that SQLAlchemy has for psycopg."""
    assert str(locate(Elsewhere(f"{name}://h/shop"), "store")) == f"Elsewhere({name}://h/shop)"


def test_what_is_no_engine_is_named_by_its_type() -> None:
    """Whatever attributes it has."""

    class Odd:
        url = "postgresql://me:secret@h/shop"

    assert shown(Odd()) == "Odd"
