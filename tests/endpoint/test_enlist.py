"""`enlist`: what it captures, when it is over, and which sessions it refuses because nobody would find the message."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from onceonly import Endpoint, Off, SetupError
from onceonly.adapters.memory.transport import MAX_BODY as MEMORY_TAKES
from onceonly.assembly import open_store
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidEffect, SchemaMissing
from onceonly.model.identity import outgoing_id
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.sql.queue import MAX_BODY as QUEUE_TAKES
from onceonly.sql.urls import whereabouts, written

SECRET = "s3cr3t"  # noqa: S105 - one that must not be seen


class Base(DeclarativeBase):
    """The user's tables."""


class Line(Base):
    """A row."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)


@dataclass
class Placed:
    """An event."""

    id: str


def shop_at(store: object, **settings: Any) -> Endpoint:
    """Make an endpoint with a handler."""
    shop = Endpoint("shop", store=store, transport="memory://enlist", **settings)

    @shop.handler
    async def place(order: Placed) -> None:
        """Do nothing."""

    return shop


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Name a file as a URL does."""
    return f"{tmp_path}/shop.db"


@pytest.fixture
async def engine(file: str) -> AsyncIterator[AsyncEngine]:
    """Make a user's engine, on a file that has the tables."""
    async with shop_at(f"sqlite:///{file}", metadata=Base.metadata).opened():
        """The first start makes the tables."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    yield engine
    await engine.dispose()


@contextmanager
def bound(url: str | URL, **options: Any) -> Iterator[Session]:
    """Open a session on an engine that never connects."""
    engine = create_engine(url, **options)
    with Session(engine) as session:
        yield session
    engine.dispose()


async def kept(shop: Endpoint) -> tuple[Record, ...]:
    """Read the records."""
    async with open_store(shop.settings) as opened:
        assert opened.pending is not None
        return await opened.pending.undispatched(1 << 52, 100)


async def test_a_message_looks_like_one_of_a_handler_without_a_cause(file: str, engine: AsyncEngine) -> None:
    """Its source, whom to answer; nothing of a message that it would follow from."""
    shop = shop_at(f"sqlite:///{file}")
    async with AsyncSession(engine) as session, session.begin():
        outgoing = shop.enlist(session)
        outgoing.publish(Placed("1"))
        outgoing.send(Placed("2"), to="billing", at=datetime(2100, 1, 1, tzinfo=UTC), type="x")
    event, command = sorted((record.effects[0] for record in await kept(shop)), key=lambda send: send.message.body)
    assert isinstance(event, Send)
    assert (event.message.source, event.message.type, event.message.body, event.to) == ("shop", "Placed", b'{"id":"1"}', "")
    assert [name for name, _ in event.message.extensions] == ["onceonlyclass"]
    assert dict(command.message.extensions) == {"replyto": "shop"}
    assert (command.to, command.due, command.message.type) == ("billing", 4102444800000, "x")


async def test_ids_are_derived_from_records_whose_identity_is_nobodys_message(file: str, engine: AsyncEngine) -> None:
    """An endpoint that sends to itself claims the message's identity: a record under it would meet the handler's own."""
    shop = shop_at(f"sqlite:///{file}")
    async with AsyncSession(engine) as session, session.begin():
        outgoing = shop.enlist(session)
        for number in range(3):
            outgoing.send(Placed(str(number)), to="shop")
    records = await kept(shop)
    assert len({record.identity for record in records}) == 3
    for record in records:
        (send,) = record.effects
        assert send.message.id == outgoing_id("shop", record.identity, 0, send.message.instant) != record.identity.id


@pytest.mark.parametrize(
    ("act", "complaint"),
    [
        (lambda o: o.send(Placed("1"), to="No Name"), "cannot send to 'No Name'"),
        (lambda o: o.publish({"a": 1}), "is unknown: pass type="),
        (lambda o: o.publish(object(), type="x"), "cannot send x"),
        (lambda o: o.publish(Placed("1"), delay=timedelta(seconds=-1)), "delay must be 0 or more"),
        (lambda o: o.publish(Placed("1"), delay="5s"), "delay= must be a"),
        (lambda o: o.publish(Placed("1"), at=datetime(2100, 1, 1)), "aware datetime"),  # noqa: DTZ001 - that is the mistake
        (lambda o: o.publish(b"x" * (MEMORY_TAKES + 1), type="x"), f"limit of this transport is {MEMORY_TAKES}"),
    ],
)
async def test_what_can_never_be_sent_is_refused_at_once(file: str, engine: AsyncEngine, act: Any, complaint: str) -> None:
    """As with a handler's context; the transaction is as it was."""
    shop = shop_at(f"sqlite:///{file}")
    async with AsyncSession(engine) as session, session.begin():
        outgoing = shop.enlist(session)
        with pytest.raises(InvalidEffect, match=complaint):
            act(outgoing)
        outgoing.publish(Placed("1"))
    assert len(await kept(shop)) == 1


async def test_a_body_that_the_transport_does_not_take_is_refused_also_where_the_endpoint_is_not_open(
    file: str, engine: AsyncEngine
) -> None:
    """The limit is that of its URL. Otherwise the broker would refuse the message after the commit."""
    shop = Endpoint("shop", store=f"sqlite:///{file}", transport="azure-queue://acme?max_body=1000")
    async with AsyncSession(engine) as session, session.begin():
        outgoing = shop.enlist(session)
        outgoing.publish(b"x" * 1000, type="x")
        with pytest.raises(InvalidEffect, match=r"1001 bytes long; the limit of this transport is 1000 .azure-queue://acme"):
            outgoing.publish(b"x" * 1001, type="x")


async def test_where_the_endpoint_runs_its_transport_says_what_is_too_large(file: str, engine: AsyncEngine) -> None:
    """Its settings hold as well: a start may name another store than the endpoint does."""
    shop = shop_at("sqlite:///elsewhere.db")
    settings = replace(shop.settings, store=f"sqlite:///{file}", transport=f"sqlite:///{file}")
    async with AsyncSession(engine) as session, host_of(shop).opened(settings=settings), session.begin():
        outgoing = shop.enlist(session)
        outgoing.publish(b"x" * QUEUE_TAKES, type="x")
        with pytest.raises(InvalidEffect, match=f"limit of this transport is {QUEUE_TAKES}"):
            outgoing.publish(b"x" * (QUEUE_TAKES + 1), type="x")
    assert QUEUE_TAKES > MEMORY_TAKES
    with pytest.raises(SetupError, match=r"elsewhere\.db"):
        shop.enlist(session)


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
async def test_it_is_over_with_its_transaction(file: str, engine: AsyncEngine, end: str) -> None:
    """However it ends; the next one needs an `enlist` of its own."""
    shop = shop_at(f"sqlite:///{file}")
    async with AsyncSession(engine) as session:
        before = shop.enlist(session)
        before.publish(Placed("1"))
        outgoing = shop.enlist(session)
        async with session.begin_nested():
            outgoing.publish(Placed("2"))
        await getattr(session, end)()
        for each in (before, outgoing):
            with pytest.raises(InvalidEffect, match="has ended: call enlist"):
                each.publish(Placed("3"))
        shop.enlist(session).publish(Placed("4"))
        await session.commit()
    assert len(await kept(shop)) == (3 if end == "commit" else 1)


async def test_a_message_that_was_expunged_before_its_flush_keeps_its_transaction_from_committing(
    file: str, engine: AsyncEngine
) -> None:
    """It would be lost while what was flushed before is committed; after a flush it is written, and no matter."""
    shop = shop_at(f"sqlite:///{file}")
    async with AsyncSession(engine, expire_on_commit=False) as session:
        shop.enlist(session).publish(Placed("1"))
        await session.flush()
        session.expunge_all()
        await session.commit()
        session.add(Line(id=1))
        outgoing = shop.enlist(session)
        outgoing.publish(Placed("2"))
        await session.flush()
        outgoing.publish(Placed("3"))
        session.expunge_all()
        await session.flush()
        with pytest.raises(InvalidEffect, match="was expunged before it was flushed"):
            await session.commit()
        await session.rollback()
        shop.enlist(session).publish(Placed("4"))
        await session.commit()
        assert await session.get(Line, 1) is None
    assert sorted(record.effects[0].message.body for record in await kept(shop)) == [b'{"id":"1"}', b'{"id":"4"}']


async def test_scoped_sessions_are_told_from_their_registry(file: str, engine: AsyncEngine) -> None:
    """It is the session of this task or thread that is meant."""
    shop = shop_at(f"sqlite:///{file}")
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
    shop.enlist(scoped).publish(Placed("1"))
    await scoped.commit()
    await scoped.remove()
    sync_engine = create_engine(f"sqlite:///{file}")
    threads = scoped_session(sessionmaker(sync_engine))
    shop.enlist(threads).publish(Placed("2"))
    threads.commit()
    threads.remove()
    sync_engine.dispose()
    assert len(await kept(shop)) == 2


async def test_the_users_own_engine_may_be_the_store(file: str, engine: AsyncEngine) -> None:
    """Or its session factory; then no names are compared."""
    for store in (engine, async_sessionmaker(engine)):
        shop = shop_at(store)
        async with async_sessionmaker(engine).begin() as session:
            shop.enlist(session).publish(Placed("1"))
    assert len(await kept(shop_at(f"sqlite:///{file}"))) == 2


async def test_a_store_without_tables_is_told_with_what_makes_them(tmp_path: Path) -> None:
    """When the message is flushed, not after it was lost; nothing is committed."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/new.db")
    async with AsyncSession(engine) as session:
        shop_at(f"sqlite:///{tmp_path}/new.db").enlist(session).publish(Placed("1"))
        with pytest.raises(
            SchemaMissing, match=r"run `onceonly schema create module:endpoint`; in a SQLite file the endpoint creates them"
        ):
            await session.commit()
    await engine.dispose()


@pytest.mark.parametrize(
    ("store", "session"),
    [
        ("sqlite:///shop.db", "sqlite:///./shop.db"),
        ("sqlite:///shop.db", "sqlite:///file:shop.db?uri=true"),
        ("postgresql://u:p@localhost/db", "postgresql+psycopg://other@127.0.0.1:5432/db"),
        ("postgresql+psycopg://u@/db", "postgresql+psycopg://u@/db?host=/run/postgresql"),
        ("postgresql://u@[::1]/db", "postgresql+psycopg://LocalHost/db"),
        ("postgresql://u@db.Example/db?schema=x", "postgresql+psycopg://db.example/db"),
        ("mariadb://u@h/db?prefix=a_", "mysql+asyncmy://h:3306/db"),
    ],
)
def test_one_database_has_many_names(store: str, session: str) -> None:
    """Drivers, users, default ports and names of this machine are no matter."""
    assert whereabouts(make_url(store)) == whereabouts(make_url(session))
    assert SECRET not in written(make_url(store.replace("u:p", f"u:{SECRET}")))


@pytest.mark.parametrize(
    ("store", "session"),
    [
        ("sqlite:///shop.db", "sqlite:///other.db"),
        ("sqlite:///shop.db", "postgresql+psycopg://h/shop.db"),
        (f"postgresql://u:{SECRET}@h/db", f"postgresql+psycopg://u:{SECRET}@h/other"),
        (f"postgresql://u:{SECRET}@h/db", f"postgresql+psycopg://u:{SECRET}@h:5433/db"),
        (f"postgresql://u:{SECRET}@h/db", f"postgresql+psycopg://u:{SECRET}@g/db"),
        ("sqlite:///shop.db", "sqlite://"),
    ],
)
def test_a_session_of_another_database_is_refused(store: str, session: str) -> None:
    """The message says both, and no password."""
    with (
        bound(session) as own,
        pytest.raises(SetupError, match=r"the session writes to .*, and the store of endpoint 'shop' is") as e,
    ):
        shop_at(store).enlist(own)
    assert SECRET not in str(e.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://u:{SECRET}@127.0.0.1/db", "postgresql://127.0.0.1/db"),
        ("postgresql+psycopg://u@LocalHost:5433/db", "postgresql://LocalHost:5433/db"),
        ("postgresql+psycopg://u@/db?host=/run/postgresql&sslpassword=secret", "postgresql:///db?host=%2Frun%2Fpostgresql"),
        ("mariadb+asyncmy://u@[::1]/db", "mariadb://[::1]/db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
    ],
)
def test_the_refusal_shows_what_the_user_wrote(url: str, shown: str) -> None:
    """Not another name of the same place, which is found nowhere in the program; and no secret."""
    assert written(make_url(url)) == shown
    if not url.startswith("sqlite"):
        with (
            bound(url) as own,
            pytest.raises(SetupError, match=f"writes to {re.escape(shown)}, .* is postgresql://db.example/"),
        ):
            shop_at(f"postgresql://u:{SECRET}@db.example/other").enlist(own)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_nowhere(url: str) -> None:
    """Two of one name are two databases."""
    assert whereabouts(make_url(url)) is None


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"store": "memory://a"}, "enlist needs a SQL store"),
        ({"store": "sqlite:///shop.db", "deduplication": Off()}, "Off\\(\\), which stores no records"),
    ],
)
def test_an_endpoint_that_keeps_no_records_cannot_enlist(settings: dict[str, Any], complaint: str) -> None:
    """Told at once."""
    with bound("sqlite:///shop.db") as session, pytest.raises(SetupError, match=complaint):
        shop_at(**settings).enlist(session)


def test_what_is_no_session_is_refused() -> None:
    """Such as an engine."""
    with pytest.raises(SetupError, match="needs a SQLAlchemy AsyncSession or Session, not str"):
        shop_at("sqlite:///shop.db").enlist("session")


def test_a_session_bound_for_the_users_own_tables_only_is_refused() -> None:
    """With what to change."""
    engine = create_engine("sqlite:///shop.db")
    with Session(binds={Base: engine}) as session, pytest.raises(SetupError, match="set bind= in addition to binds="):
        shop_at("sqlite:///shop.db").enlist(session)
    with Session(engine, binds={Base: engine}) as session:
        shop_at("sqlite:///shop.db").enlist(session)
    engine.dispose()


@pytest.mark.parametrize(
    "options", [{"isolation_level": "AUTOCOMMIT"}, {"execution_options": {"isolation_level": "AUTOCOMMIT"}}]
)
def test_a_session_in_autocommit_is_refused(options: dict[str, Any]) -> None:
    """Its rollback would not take anything back."""
    with bound("sqlite:///shop.db", **options) as session, pytest.raises(SetupError, match="AUTOCOMMIT"):
        shop_at("sqlite:///shop.db").enlist(session)


def test_a_session_that_moves_tables_is_refused() -> None:
    """The record would be written into a tenant's schema."""
    options = {"schema_translate_map": {None: "tenant"}}
    with bound("sqlite:///shop.db", execution_options=options) as session, pytest.raises(SetupError, match="translate_map"):
        shop_at("sqlite:///shop.db").enlist(session)


async def test_a_handlers_own_session_is_refused(file: str, engine: AsyncEngine) -> None:
    """What a handler sends goes through its context, so that it is sent once for one message."""
    shop = shop_at(f"sqlite:///{file}")
    async with open_store(shop.settings) as opened:
        unit = await opened.store.begin([])
        session = unit.resources.get(AsyncSession)
        with pytest.raises(SetupError, match="send messages with its Context"):
            shop.enlist(session)
        unit.abandon()
    assert engine.url.database == file


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 86_401])
def test_relay_after_is_checked_with_the_other_settings(seconds: float) -> None:
    """All problems at once."""
    with pytest.raises(SetupError, match=r"(?s)retry must be.*relay_after must be a number of seconds above 0"):
        shop_at("sqlite:///shop.db", relay_after=seconds, retry="often")
