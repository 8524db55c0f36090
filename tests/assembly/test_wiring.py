"""From URLs and settings to adapters: what works, what is missing, and that no message shows a password."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import asyncpg
import psycopg
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, inspect
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from onceonly import Endpoint, History, Off, Retry, SetupError, Tokens, systems
from onceonly.assembly import open_database, open_dead_letters, open_store, open_transport, schemas, shown, wire
from onceonly.config.endpoint import Settings
from onceonly.config.location import locate
from onceonly.errors import DriverMissing, SchemaMissing
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.bundle import Ports
from onceonly.ports.handlers import Handlers
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.observer import Point
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import create
from onceonly.sql.store import SqlStore
from onceonly.systems import carriers
from tests.runtime.harness import CallTally

SECRET = "s3cr3t"  # noqa: S105 - one that must not be seen


def settings(**changed: Any) -> Settings:
    """Make settings on memory adapters."""
    return Settings(**{"name": "shop", "store": "memory://a", "transport": "memory://a"} | changed)


def handlers(_: object, __: object) -> Any:
    """Return handlers that are never called: nothing is received here."""
    return Mock(spec=Handlers)


@pytest.mark.parametrize("url", ["ftp://h", "shop.db", "", "://", "sqlit:///x", "3:x"])
@pytest.mark.parametrize("role", ["store", "transport", "dead_letters"])
def test_an_unknown_scheme_is_refused_when_the_endpoint_is_made(url: str, role: str) -> None:
    """Listing what there is."""
    with pytest.raises(SetupError, match=r"Supported: .*mariadb://, memory://, .*mysql://, .*postgresql://, .*sqlite://"):
        settings(**{role: url})


@pytest.mark.parametrize(
    ("url", "install"),
    [
        ("postgresql://h/d", "onceonly[postgresql]"),
        ("postgresql+psycopg://h/d", "onceonly[psycopg]"),
        ("mysql://h/d", "onceonly[mysql]"),
        ("amqp://h", "onceonly[rabbitmq]"),
    ],
)
def test_a_missing_driver_is_told_with_the_command_that_installs_it(
    url: str, install: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At start; making the endpoint needs no driver."""
    monkeypatch.setattr(systems, "find_spec", {"aiosqlite": "there"}.get)
    role: systems.Role = "transport" if "amqp" in url else "store"
    with pytest.raises(DriverMissing) as caught:
        locate(url, role).require_driver(role)
    assert f"pip install '{install}'" in str(caught.value)


def test_the_embedded_driver_may_be_missing_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the core, so the installation is broken."""
    monkeypatch.setattr(systems, "find_spec", {"sqlalchemy": "there"}.get)
    with pytest.raises(DriverMissing, match="its driver, aiosqlite, is not installed: pip install onceonly"):
        locate("sqlite:///a.db", "store").require_driver("store")


def test_a_scheme_without_an_adapter_lists_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its driver there."""
    monkeypatch.setattr(systems, "find_spec", lambda _: "there")
    with pytest.raises(SetupError, match=r"no store for amqp://; there is .*mariadb://, memory://, .*sqlite://"):
        locate("amqp://h", "store").require_driver("store")


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host/path",
        f"amqp://user:{SECRET}@host/path",
        f"postgresql://user:{SECRET}/odd@host/path",
        f"postgresql://host/path?password={SECRET}",
        f"{SECRET}",
        f"redis:{SECRET}@host",
    ],
)
def test_no_message_shows_credentials(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with the URL, and however it is written."""
    monkeypatch.setattr(systems, "find_spec", lambda _: None)
    assert SECRET not in shown(url)
    for attempt in (
        lambda: settings(store=url),
        lambda: locate(url, "store").require_driver("store"),
        lambda: locate(url, "transport").require_driver("transport"),
    ):
        try:
            attempt()
        except SetupError as error:
            assert SECRET not in str(error)  # noqa: PT017 - a URL that is fine so far raises nothing


def test_all_wrong_settings_are_told_at_once() -> None:
    """Each on its line."""
    with pytest.raises(SetupError) as caught:
        settings(
            name="No Name",
            store=5,
            transport="x",
            metadata=5,
            deduplication=5,
            blobs="/var/lib/shop",
            identity=5,
            retry=Retry(factor=0, jitter=2),
            timeout=0,
            worker=5,
        )
    assert len(str(caught.value).splitlines()) == 12


def test_a_retention_must_be_longer_than_nothing() -> None:
    """Told where it is made."""
    with pytest.raises(SetupError, match="retention"):
        History(retention=timedelta())


def test_tokens_without_a_url_need_a_database_to_be_kept_in() -> None:
    """Told with what to write instead."""
    assert settings(store="sqlite:///a.db", deduplication=Tokens()).deduplication == Tokens()
    with pytest.raises(SetupError, match=r"use Tokens\(url\)"):
        settings(store="memory://a", deduplication=Tokens())


def test_a_synchronous_engine_is_refused_with_what_to_write_instead() -> None:
    """The commonest mistake with engines."""
    engine: Engine = create_engine("sqlite://")
    with pytest.raises(SetupError, match="create_async_engine"):
        settings(store=engine)
    engine.dispose()


def tables(engine: AsyncEngine | Path) -> set[str]:
    """List the tables of a SQLite file."""
    synchronous = create_engine(f"sqlite:///{engine}")
    found = set(inspect(synchronous).get_table_names())
    synchronous.dispose()
    return found


def users_tables() -> MetaData:
    """Make the user's own metadata."""
    metadata = MetaData()
    Table("orders", metadata, Column("id", Integer, primary_key=True))
    return metadata


async def test_an_embedded_database_gets_all_tables_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This library's and the user's, and again without harm."""
    monkeypatch.setattr(carriers, "_OPENERS", {})  # another test of this process may have imported one
    file = tmp_path / "shop.db"
    chosen = settings(store=f"sqlite:///{file}", transport=f"sqlite:///{tmp_path}/queue.db", metadata=users_tables())
    for _ in range(2):
        async with wire(chosen, handlers) as ports:
            assert isinstance(ports.store, SqlStore)
            assert isinstance(ports.transport, SqlTransport)
    assert {"orders", "onceonly_schema"} <= tables(file)
    assert "orders" not in tables(tmp_path / "queue.db")


async def test_without_create_the_tables_must_be_there(tmp_path: Path) -> None:
    """As on every database that is not embedded."""
    url = f"sqlite:///{tmp_path}/shop.db"
    chosen = settings(store=url + "?create=false", metadata=users_tables())
    with pytest.raises(SchemaMissing):
        async with wire(chosen, handlers):
            pass
    async with open_database(url) as database:
        for schema in schemas("store"):
            await create(database, schema)
    async with wire(chosen, handlers):
        assert "orders" not in tables(tmp_path / "shop.db")


@pytest.mark.parametrize("wrap", [lambda engine: engine, async_sessionmaker], ids=["engine", "session factory"])
async def test_a_users_engine_is_used_and_left_open(tmp_path: Path, wrap: Callable[[AsyncEngine], object]) -> None:
    """It is the user's to dispose."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with wire(settings(store=wrap(engine)), handlers) as ports:
        unit = await ports.store.begin([])
        unit.abandon()
    async with engine.connect() as connection:
        assert connection.in_transaction() is False
    await engine.dispose()


async def test_a_database_is_shared_by_all_that_name_it(tmp_path: Path) -> None:
    """And opened anew once the last of them has left."""
    url = f"sqlite:///{tmp_path}/shop.db"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_database(url))
        second = await stack.enter_async_context(open_database(url))
        assert first is second
    async with open_database(url) as third:
        assert third is not first


async def test_endpoints_with_one_memory_name_share_its_world() -> None:
    """For as long as one of them is there."""
    async with open_transport("memory://shared", "one") as one, open_transport("memory://shared", "two") as two:
        await two.declare([Topology(endpoint="two")])
        sent = Send(message=Message(id="1", source="s", type="t", body=b"{}"), to="two")
        assert await one.send([sent]) == (Answer.TAKEN,)
        assert len(await two.receive(10, 0)) == 1
    async with open_transport("memory://shared", "one") as one:
        assert await one.send([sent]) == (Answer.REFUSED,)


async def test_dead_letters_may_live_in_another_database(tmp_path: Path) -> None:
    """As the settings say; the store's own otherwise."""
    elsewhere = f"sqlite:///{tmp_path}/dead.db"
    chosen = settings(store=f"sqlite:///{tmp_path}/shop.db", dead_letters=elsewhere)
    async with wire(chosen, handlers) as ports, open_dead_letters(elsewhere) as dead, open_store(chosen) as opened:
        assert type(ports.dead_letters) is type(dead) is type(opened.dead_letters)
    assert "onceonly_schema" in tables(tmp_path / "dead.db")


async def test_the_queue_and_its_subscriptions_are_declared_at_start() -> None:
    """So a message sent right after is not refused; the observer sees every call."""
    tally = CallTally()
    async with wire(settings(), handlers, events=("placed",), observer=tally) as ports:
        event = Send(message=Message(id="1", source="s", type="placed", body=b"{}"))
        await ports.transport.send([event])
        assert (await ports.transport.depth("shop")).waiting == 1
    assert tally.calls == {Point.DECLARE: 1, Point.DISPATCH: 1, Point.DEPTH: 1}


async def test_the_memory_store_cannot_do_without_its_claims() -> None:
    """Told, not ignored."""
    with pytest.raises(SetupError, match="needs a SQL store"):
        async with wire(settings(deduplication=Off()), handlers):
            pass


def test_memory_has_no_tables_to_look_after() -> None:
    """For `onceonly schema`."""
    with pytest.raises(SetupError, match="not a SQL database"):
        open_database("memory://a")


async def test_what_was_opened_is_closed_when_a_later_part_fails(tmp_path: Path) -> None:
    """A start that fails leaves nothing behind: warnings about open connections are errors here."""
    broken = settings(store=f"sqlite:///{tmp_path}/shop.db", transport=f"sqlite:///{tmp_path}/no/such/folder/q.db")
    with pytest.raises(SetupError, match="folder"):
        async with wire(broken, handlers):
            pass


def test_settings_can_be_replaced_and_are_checked_again() -> None:
    """As the command line and the kit do."""
    shop = Endpoint("shop", store="memory://a", transport="memory://a")
    assert replace(shop.settings, transport="memory://b").transport == "memory://b"
    with pytest.raises(SetupError):
        replace(shop.settings, transport="b")


async def test_ports_carry_what_was_made(tmp_path: Path) -> None:
    """The handlers are made once the transport's limits are known."""
    seen: list[int] = []

    def make(traits: Any, _blobs: object) -> Any:
        seen.append(traits.max_body)

    async with wire(settings(store=f"sqlite:///{tmp_path}/shop.db"), make) as ports:
        assert isinstance(ports, Ports)
        assert seen == [ports.transport.traits.max_body]


@pytest.mark.parametrize("url", ["postgresql://db.example/shop", "postgresql+asyncpg://db.example/shop"])
def test_the_offer_of_asyncpg_has_its_own_connection(url: str) -> None:
    """For `async def` handlers only; psycopg's has a `commit`, and is not offered."""
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    for store in (url, engine, async_sessionmaker(engine)):
        offer = locate(store, "store").offer
        assert offer.match(asyncpg.Connection, offer.asynchronous) is asyncpg.Connection
        assert offer.match(asyncpg.Connection, offer.synchronous) is None
    offer = locate("postgresql+psycopg://db.example/shop", "store").offer
    assert offer.match(psycopg.AsyncConnection, offer.asynchronous) is None
    assert offer.match(asyncpg.Connection, offer.asynchronous) is None
