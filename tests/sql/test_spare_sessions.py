"""A session that only added objects serves the next handler of its unit, unless anybody could tell."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, ref

import pytest
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, object_session

from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.spare_session import SpareSession
from tests.sql.harness import Order, attempt, messages, orders, records, session_of

Keep = Callable[[AsyncSession], object]


class Counting(Session):
    """A user's class with a constructor of its own, which keeps something that changes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen: list[str] = []


def listens(session: AsyncSession) -> None:
    """Have a function called at each statement."""
    event.listen(session.sync_session, "do_orm_execute", lambda *_: None)


CACHE: WeakKeyDictionary[Session, str] = WeakKeyDictionary()


def caches(session: AsyncSession) -> None:
    """Keep something for as long as the session lives."""
    assert session.sync_session not in CACHE
    CACHE[session.sync_session] = "mine"


def makes_no_flushes(session: AsyncSession) -> None:
    """Change an attribute."""
    session.sync_session.autoflush = False


def notes(session: AsyncSession) -> None:
    """Write into the session's own dictionary."""
    session.info["tenant"] = "acme"


async def handled(store: SqlStore, keep: Keep | None) -> tuple[list[object], list[int], object]:
    """Handle three messages that add an object each. Give what `keep` returned, the sessions by `id`, and the unit."""
    unit = await store.begin(messages(3))
    kept: list[object] = []
    sessions: list[int] = []

    def handler(id_: str) -> Callable[[], Any]:
        async def handle() -> None:
            session = session_of(unit.resources)
            sessions.append(id(session.sync_session))
            session.add(Order(id=id_))
            if keep is not None:
                kept.append(keep(session))

        return handle

    for id_ in "abc":
        await attempt(unit, handler(id_))
    await unit.commit(records(*unit.found.new))
    return kept, sessions, unit


async def test_one_session_serves_handlers_that_only_add(database: Database, store: SqlStore) -> None:
    """The second one's serves the third. The first only shows what kind of handlers they are."""
    _, sessions, _ = await handled(store, None)
    assert sessions[1] == sessions[2]
    assert await orders(database) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "keep",
    [
        lambda session: session,
        lambda session: session.sync_session,
        lambda session: session.sync_session.get_transaction(),
        lambda session: object_session(next(iter(session.new))),
        lambda session: session.add,
        lambda session: session.sync_session.execute,
        ref,
        caches,
        listens,
        makes_no_flushes,
        notes,
    ],
    ids=[
        "session",
        "synchronous",
        "transaction",
        "of object",
        "method",
        "inner method",
        "weak reference",
        "cache",
        "listener",
        "attribute",
        "info",
    ],
)
async def test_a_session_that_somebody_could_tell_is_not_given_again(
    database: Database, store: SqlStore, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something refers to it, or it is not as it was. What is kept refuses to be used."""
    answers: list[bool] = []
    is_as_new = SpareSession.is_as_new

    def ask(self: SpareSession) -> bool:
        answers.append(is_as_new(self))
        return answers[-1]

    monkeypatch.setattr(SpareSession, "is_as_new", ask)
    kept, _, _ = await handled(store, keep)
    assert answers[:1] == [False]
    assert not any(answers)
    assert await orders(database) == ["a", "b", "c"]
    for each in kept:
        if isinstance(each, Session):
            with pytest.raises(RuntimeError, match="used after its handler ended"):
                each.execute(select(Order.id))
            with pytest.raises(RuntimeError, match="used after its handler ended"):
                each.add(Order(id="late"))


async def test_a_class_with_a_constructor_of_its_own_gets_a_new_session_each_time(database: Database, store: SqlStore) -> None:
    """What it keeps could be seen."""
    database.sessions = async_sessionmaker(sync_session_class=Counting)
    seen: list[int] = []

    def look(session: AsyncSession) -> None:
        synchronous = session.sync_session
        assert isinstance(synchronous, Counting)
        seen.append(len(synchronous.seen))
        synchronous.seen.append("used")

    await handled(store, look)
    assert seen == [0, 0, 0]


async def test_what_a_factory_gives_each_session_is_not_that_of_another_handler(database: Database, store: SqlStore) -> None:
    """A session copies `info`, and the handler changes the copy."""
    database.sessions = async_sessionmaker(info={"tenant": "none"})
    seen: list[str] = []

    def look(session: AsyncSession) -> None:
        seen.append(session.info["tenant"])
        session.info["tenant"] = f"tenant {len(seen)}"

    await handled(store, look)
    assert seen == ["none", "none", "none"]


async def test_a_session_that_has_executed_a_statement_is_closed(store: SqlStore) -> None:
    """Its connection object ends with its handler."""
    unit = await store.begin(messages(2))
    before: list[AsyncSession] = []

    async def handler() -> None:
        session = session_of(unit.resources)
        assert not any(session is each for each in before)
        before.append(session)
        await session.execute(select(Order.id))
        assert await session.connection() is session.bind

    await attempt(unit, handler)
    await attempt(unit, handler)
    await unit.commit(records(*unit.found.new))
    for session in before:
        with pytest.raises(RuntimeError, match="used after its handler ended"):
            await session.execute(select(Order.id))
