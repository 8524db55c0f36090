"""A key in a transaction that the caller owns, on every database, in synchronous and asynchronous sessions."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onceonly.endpoint.enlisted_key import EnlistedKey
from onceonly.endpoint.host import host_of
from onceonly.errors import CommitFailed, ConflictError, InvalidEffect, InvalidKey, KeyReused, SetupError, TransactionMisused
from onceonly.model.identity import Identity
from onceonly.runtime.observe.observer import Point
from onceonly.runtime.processes.notifier import CommittedRecord
from onceonly.sql.database import place_of
from onceonly.sql.store.tables import Tables, tables
from tests import ROOT
from tests.sql.enlist_harness import OrderPlaced, Shop, begin, engine_of, no_implicit_begin
from tests.sql.harness import Order
from tests.sql.transaction_scenarios import Block

SYNC_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql", "mariadb": "mysql+pymysql"}
KINDS = ("async", "sync")


class Caller(NamedTuple):
    """A caller that owns sessions: `run` runs a function with a synchronous session, whatever the kind of the caller's own."""

    shop: Shop
    kind: str
    factory: Any

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator["Owned"]:
        """Open a session, and close it."""
        session = self.factory(**options)
        owned = Owned(self.shop, session)
        try:
            yield owned
        finally:
            await owned.call("close")

    async def place(self, order: str, *, key: str = "k1", **options: Any) -> EnlistedKey:
        """Place an order once for each key, as an application does."""
        async with self.session() as owned:
            entry = await owned.take(key, **options)
            if not entry.is_known:
                owned.add(order)
                entry.publish(OrderPlaced(order))
                entry.answer = {"placed": order}
            await owned.call("commit")
        return entry


class Owned:
    """One session of either kind. Synchronous ones work in a thread, as they do in an application."""

    def __init__(self, shop: Shop, session: Any) -> None:
        self.shop, self.session = shop, session
        self.is_async = isinstance(session, AsyncSession | async_scoped_session)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a method."""
        return await self.run(getattr(self.session, name), *arguments)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call what may wait for the database."""
        if self.is_async:
            return await function(*arguments)
        return await asyncio.to_thread(function, *arguments)

    async def take(self, key: str = "k1", **options: Any) -> EnlistedKey:
        """Take a key."""
        if self.is_async:
            return await self.shop.endpoint.enlist(self.session, key=key, **options)
        return await asyncio.to_thread(lambda: self.shop.endpoint.enlist(self.session, key=key, **options))

    def add(self, order: str) -> None:
        """Add a row of the caller's."""
        self.session.add(Order(id=order))

    async def commit_in(self, savepoint: Any, how: str) -> None:
        """End a savepoint."""
        await self.run(getattr(savepoint, how))


def tables_of(shop: Shop) -> Tables:
    """Return the tables of a shop's store."""
    place = place_of(shop.store)
    return tables(place.prefix, place.schema)


async def held_in(owned: Owned, tables: Tables) -> int:
    """Count the records that a session sees."""
    return len((await owned.call("execute", select(tables.records.c.key))).all())


def sync_engine(store: str, **options: Any) -> Any:
    """Make a caller's own synchronous engine for the database of a store.

    MySQL offers TLS, which PyMySQL takes unasked: nothing between them could see a COMMIT then.
    """
    url = make_url(store).set(query={})
    driver = SYNC_DRIVERS[url.get_backend_name()]
    if driver == "mysql+pymysql":
        options["connect_args"] = {"ssl_disabled": True}
    engine = create_engine(url.set(drivername=driver), **options)
    if url.get_backend_name() == "sqlite":  # so that savepoints work, as SQLAlchemy's page on SQLite says
        event.listen(engine, "connect", no_implicit_begin)
        event.listen(engine, "begin", begin)
    return engine


def autocommitting_engine(store: str) -> Any:
    """Make an engine whose driver commits each statement, without SQLAlchemy's knowledge."""
    url = make_url(store).set(query={})
    mode: dict[str, Any] = {"isolation_level": None} if url.get_backend_name() == "sqlite" else {"autocommit": True}
    return create_engine(url.set(drivername=SYNC_DRIVERS[url.get_backend_name()]), connect_args=mode)


@asynccontextmanager
async def caller_of(shop: Shop, kind: str, **options: Any) -> AsyncIterator[Caller]:
    """Make a caller with an engine of its own."""
    if kind == "async":
        engine = engine_of(shop.store)
        chosen = engine.execution_options(**options) if options else engine
        try:
            yield Caller(shop, kind, async_sessionmaker(chosen))
        finally:
            await engine.dispose()
    else:
        own = sync_engine(shop.store)
        try:
            yield Caller(shop, kind, sessionmaker(own.execution_options(**options) if options else own))
        finally:
            own.dispose()


class EnlistedKeyScenarios:
    """The scenarios; a fixture `shop` says on which database. Each runs with both kinds of sessions."""

    @pytest.fixture(params=KINDS)
    async def caller(self, shop: Shop, request: pytest.FixtureRequest) -> AsyncIterator[Caller]:
        """Open a caller of each kind."""
        async with caller_of(shop, request.param) as caller:
            yield caller

    async def test_a_key_is_committed_with_rows_answer_and_messages(self, shop: Shop, caller: Caller) -> None:
        """Once: repeated calls find the answer, and send nothing."""
        async with shop.running():
            entries = [await caller.place("A") for _ in range(3)]
            assert await shop.bodies(1) == ["A"]
            await shop.watch.until(Point.FORGET)
            entries.append(await caller.place("A"))
        assert [entry.is_known for entry in entries] == [False, True, True, True]
        assert [entry.answer for entry in entries] == [{"placed": "A"}] * 4
        assert entries[-1].is_dispatched
        assert (await shop.orders(), await shop.records(), await shop.nothing_waits()) == (["A"], (), True)

    async def test_without_a_key_a_repeated_call_is_done_twice(self, shop: Shop, caller: Caller) -> None:
        """The control run: what the key is for."""
        for order in ("A", "B"):
            async with caller.session() as owned:
                outgoing = shop.endpoint.enlist(owned.session)
                owned.add(order)
                outgoing.publish(OrderPlaced("A"))
                await owned.call("commit")
        assert (await shop.orders(), len(await shop.records())) == (["A", "B"], 2)

    @pytest.mark.parametrize("answer", [b"\x00\xff", "text", {"a": [1, None]}, None])
    async def test_an_answer_comes_back_as_it_was(self, caller: Caller, answer: object) -> None:
        """Bytes, JSON, and none. The last one that was set counts."""
        async with caller.session() as owned:
            entry = await owned.take()
            entry.answer = "first"
            entry.answer = answer
            await owned.call("commit")
            assert entry.answer == answer
        async with caller.session() as owned:
            again = await owned.take()
            assert (again.is_known, again.answer, again.is_dispatched) == (True, answer, True)

    async def test_a_rollback_drops_everything(self, shop: Shop, caller: Caller) -> None:
        """Flushed or not. The entry is over, and raises; the session may take the key again."""
        async with caller.session() as owned:
            entry = await owned.take()
            owned.add("A")
            entry.publish(OrderPlaced("A"))
            entry.answer = 1
            await owned.call("flush")
            await owned.call("rollback")
            for use in (lambda: entry.answer, lambda: entry.publish(OrderPlaced("A")), lambda: setattr(entry, "answer", 2)):
                with pytest.raises(TransactionMisused, match="has ended"):
                    use()
            with pytest.raises(TransactionMisused, match="nothing is committed"):
                await entry.dispatch()
            assert (await shop.orders(), await shop.records()) == ([], ())
            entry = await owned.take()
            assert not entry.is_known
            await owned.call("commit")
        async with caller.session() as owned:
            assert (await owned.take()).is_known

    async def test_a_savepoint_that_is_rolled_back_takes_its_key_along(self, shop: Shop, caller: Caller) -> None:
        """So does one around the savepoint in which it was taken."""
        async with caller.session() as owned:
            outer = await owned.call("begin_nested")
            inner = await owned.call("begin_nested")
            entry = await owned.take()
            owned.add("A")
            entry.publish(OrderPlaced("A"))
            await owned.commit_in(inner, "commit")
            assert not entry.is_known
            await owned.commit_in(outer, "rollback")
            with pytest.raises(TransactionMisused, match="has ended"):
                entry.publish(OrderPlaced("B"))
            owned.add("C")
            await owned.call("commit")
        async with caller.session() as owned:
            assert not (await owned.take()).is_known
        assert (await shop.orders(), await shop.records()) == (["C"], ())

    async def test_a_key_survives_the_rollback_of_a_later_savepoint(self, shop: Shop, caller: Caller) -> None:
        """Only the messages and the answer of that savepoint go."""
        async with caller.session() as owned:
            entry = await owned.take()
            entry.answer = "before"
            entry.publish(OrderPlaced("A"))
            savepoint = await owned.call("begin_nested")
            entry.answer = "inside"
            entry.publish(OrderPlaced("lost"))
            await owned.commit_in(savepoint, "rollback")
            entry.publish(OrderPlaced("B"))
            owned.add("A")
            await owned.call("commit")
            assert (entry.answer, await entry.dispatch()) == ("before", True)
        assert await shop.bodies(2) == ["A", "B"]
        async with caller.session() as owned:
            again = await owned.take()
            assert (again.is_known, again.answer) == (True, "before")
        assert (await shop.records(), await shop.nothing_waits()) == ((), True)

    @pytest.mark.parametrize("count", [1, 3])
    async def test_records_can_wait_for_the_statement_that_stores_the_answer(
        self, shop: Shop, caller: Caller, count: int
    ) -> None:
        """Those of a savepoint that is rolled back are not inserted. What was committed is reported whole, for a relay."""
        told: list[CommittedRecord] = []
        async with caller.session() as owned:
            with host_of(shop.endpoint).notifier.listen(told.extend, is_threadsafe=True):
                entry = await owned.take()
                entry._hold_records()
                savepoint = await owned.call("begin_nested")
                entry.publish(OrderPlaced("lost"))
                await owned.commit_in(savepoint, "rollback")
                savepoint = await owned.call("begin_nested")
                for number in range(count):
                    entry.publish(OrderPlaced(str(number)))
                await owned.commit_in(savepoint, "commit")
                await owned.call("flush")
                assert await held_in(owned, tables_of(shop)) == 0
                entry.answer = 1
                await owned.call("commit")
            records = await shop.records()
            assert sorted(records, key=lambda each: each.identity) == told
            assert len(told) == count
            assert await entry.dispatch()
        assert await shop.bodies(count) == [str(number) for number in range(count)]
        async with caller.session() as owned:
            assert (await owned.take()).is_dispatched
        assert (await shop.records(), await shop.nothing_waits()) == ((), True)

    async def test_a_commit_within_another_transaction_reports_only_names(self, shop: Shop, caller: Caller) -> None:
        """The other transaction may be rolled back, so a relay looks for the records first."""
        told: list[CommittedRecord] = []
        engine = caller.factory.kw["bind"]
        for how in ("rollback", "commit"):
            connection = engine.connect()
            opened = Owned(shop, connection)
            opened.is_async = caller.kind == "async"
            if opened.is_async:
                connection = opened.session = await connection
            outer = await opened.run(connection.begin)
            async with caller.session(bind=connection, join_transaction_mode="create_savepoint") as owned:
                with host_of(shop.endpoint).notifier.listen(told.extend, is_threadsafe=True):
                    entry = await owned.take()
                    entry._hold_records()
                    entry.publish(OrderPlaced(how))
                    await owned.call("commit")
            await opened.run(getattr(outer, how))
            await opened.run(connection.close)
            assert [type(each) for each in told] == [Identity]
            assert [each.identity for each in await shop.records()] == (told if how == "commit" else [])
            told.clear()

    async def test_an_autobegun_session_is_taken_as_it_is(self, shop: Shop, caller: Caller) -> None:
        """One that has already written."""
        async with caller.session() as owned:
            owned.add("A")
            await owned.call("flush")
            entry = await owned.take()
            entry.answer = 1
            await owned.call("commit")
        async with caller.session() as owned:
            assert (await owned.take()).is_known
        assert await shop.orders() == ["A"]

    async def test_two_keys_in_one_session_are_two_keys(self, shop: Shop, caller: Caller) -> None:
        """Each has its own answer and messages."""
        async with caller.session() as owned:
            first, second = await owned.take("k1"), await owned.take("k2")
            first.answer, second.answer = 1, 2
            first.publish(OrderPlaced("A"))
            second.publish(OrderPlaced("B"))
            await owned.call("commit")
        async with caller.session() as owned:
            found = [await owned.take(key) for key in ("k1", "k2")]
            assert [(entry.is_known, entry.answer, entry.is_dispatched) for entry in found] == [
                (True, 1, False),
                (True, 2, False),
            ]
            await owned.call("rollback")
            assert await found[0].dispatch()
        assert (await shop.bodies(1), len(await shop.records())) == (["A"], 1)

    async def test_one_key_twice_in_one_session_is_known_the_second_time(self, shop: Shop, caller: Caller) -> None:
        """As for two copies in one batch. It is not committed yet, so it is not dispatched."""
        async with caller.session() as owned:
            first, second = await owned.take(), await owned.take()
            assert (first.is_known, second.is_known, second.is_dispatched) == (False, True, False)
            with pytest.raises(KeyReused):
                await owned.take(request="another")
            owned.add("A")
            first.publish(OrderPlaced("A"))
            first.answer = {"placed": "A"}
            assert second.answer == {"placed": "A"}
            await owned.call("commit")
            assert second.answer == {"placed": "A"}
            assert await second.dispatch()
        assert (await shop.orders(), await shop.bodies(1)) == (["A"], ["A"])

    async def test_the_second_entry_of_a_session_that_rolls_back_has_no_answer(self, caller: Caller) -> None:
        """What it would have answered was not committed."""
        async with caller.session() as owned:
            first, second = await owned.take(), await owned.take()
            first.answer = 1
            await owned.call("rollback")
            with pytest.raises(TransactionMisused):
                assert second.answer

    async def test_sessions_that_share_their_info_are_two_sessions(self, shop: Shop, caller: Caller) -> None:
        """A program passes `info` on, such as the name of a tenant."""
        async with caller.session() as one:
            await one.take("k0")
            await one.call("rollback")
            async with caller.session(info={**one.session.info}) as two:
                entry = await two.take()
                entry.publish(OrderPlaced("A"))
                entry.answer = 1
                await two.call("commit")
        async with caller.session() as again:
            known = await again.take()
            assert (known.answer, known.is_dispatched) == (1, False)

    async def test_a_key_of_another_request_is_refused(self, caller: Caller) -> None:
        """The same key in another scope is another key."""
        await caller.place("A", request={"order": "A"})
        async with caller.session() as owned:
            with pytest.raises(KeyReused):
                await owned.take(request={"order": "B"})
            await owned.call("rollback")
            assert (await owned.take(request={"order": "A"})).is_known
            assert not (await owned.take(request={"order": "A"}, scope="tenant")).is_known

    async def test_a_known_key_can_be_used_for_nothing_else(self, caller: Caller) -> None:
        """Its answer is read, and that is all."""
        await caller.place("A")
        async with caller.session() as owned:
            entry = await owned.take()
            with pytest.raises(TransactionMisused, match="used before"):
                entry.answer = 1
            with pytest.raises(TransactionMisused, match="used before"):
                entry.send(OrderPlaced("A"), to="shop")
            assert entry.answer == {"placed": "A"}

    async def test_the_other_form_of_transaction_knows_the_key(self, shop: Shop, caller: Caller) -> None:
        """A service may change from one to the other. What is left to dispatch is dispatched, all of it."""
        async with caller.session() as owned:
            entry = await owned.take()
            for order in ("A", "B", "C"):
                entry.publish(OrderPlaced(order))
            entry.answer = 1
            await owned.call("commit")
        block = Block("A")
        assert (await shop.endpoint.transact(block, idempotency_key="k1"), block.runs) == (1, 0)
        assert (await shop.bodies(3), await shop.records()) == (["A", "B", "C"], ())
        await shop.endpoint.transact(block, idempotency_key="k2")
        async with caller.session() as owned:
            again = await owned.take("k2")
            assert (again.is_known, again.answer, again.is_dispatched) == (True, {"placed": ["A"]}, True)

    async def test_a_known_key_shows_what_is_not_dispatched_and_can_dispatch_it(self, shop: Shop, caller: Caller) -> None:
        """Crash here, "after-commit": 1 committed, 2 nothing sent, 3 no relay, 4 the call is repeated, 5 it sends."""
        await caller.place("A")
        entry = await caller.place("A")
        assert (entry.is_known, entry.is_dispatched, await shop.nothing_waits()) == (True, False, True)
        assert (await entry.dispatch(), entry.is_dispatched, await shop.bodies(1)) == (True, True, ["A"])
        assert (await caller.place("A")).is_dispatched
        assert await shop.records() == ()

    async def test_dispatch_comes_after_the_commit(self, caller: Caller) -> None:
        """Before, nothing is there to send."""
        async with caller.session() as owned:
            entry = await owned.take()
            with pytest.raises(TransactionMisused, match="after the session's transaction has ended"):
                await entry.dispatch()

    async def test_a_commit_that_is_too_late_fails_and_leaves_nothing(self, shop: Shop, caller: Caller) -> None:
        """By the clock of the server; the business data are flushed before it is read."""
        async with caller.session() as owned:
            entry = await owned.take(max_commit=timedelta(milliseconds=1))
            owned.add("A")
            entry.publish(OrderPlaced("A"))
            await asyncio.sleep(0.05)
            for _ in range(2):
                with pytest.raises(CommitFailed, match="more than 1 ms ago"):
                    await owned.call("commit")
            await owned.call("rollback")
        assert (await shop.orders(), await shop.records()) == ([], ())
        assert not (await caller.place("A")).is_known

    async def test_a_key_whose_row_was_rolled_back_by_a_statement_is_not_committed(self, shop: Shop, caller: Caller) -> None:
        """SQLAlchemy does not see a ROLLBACK TO that an application executes itself."""
        async with caller.session() as owned:
            await owned.call("execute", text("SAVEPOINT own"))
            entry = await owned.take()
            await owned.call("execute", text("ROLLBACK TO SAVEPOINT own"))
            owned.add("A")
            with pytest.raises(CommitFailed, match="rolled it back"):
                await owned.call("commit")
            assert not entry.is_known
            await owned.call("rollback")
        assert await shop.orders() == []

    async def test_two_attempts_at_once_are_one(self, shop: Shop, caller: Caller) -> None:
        """The second one waits for the first, or gets a conflict and tries again; then it knows the answer."""

        async def place() -> EnlistedKey:
            while True:
                try:
                    return await caller.place("A")
                except ConflictError:
                    await asyncio.sleep(0)

        entries = await asyncio.gather(*(place() for _ in range(4)))
        assert sorted(entry.is_known for entry in entries) == [False, True, True, True]
        assert [entry.answer for entry in entries] == [{"placed": "A"}] * 4
        assert (await shop.orders(), len(await shop.records())) == (["A"], 1)

    async def test_an_attempt_waits_no_longer_than_it_was_asked_to(self, caller: Caller) -> None:
        """Then it is a conflict. The time of later waits is as before."""
        async with caller.session() as holder, caller.session() as other:
            await holder.take()
            with pytest.raises(ConflictError, match="roll back and try again"):
                await other.take(wait=0.05)
            await other.call("rollback")
            await holder.call("rollback")
            assert not (await other.take(wait=0.05)).is_known

    async def test_processes_with_one_key_place_one_order(self, shop: Shop, caller: Caller) -> None:
        """Four processes that begin together, each until it has an answer."""
        command = (sys.executable, "-m", "tests.sql.enlisted_key_process", caller.kind, shop.store, shop.transport)
        processes = [
            await asyncio.create_subprocess_exec(*command, str(number), cwd=ROOT, stdout=asyncio.subprocess.PIPE)
            for number in range(4)
        ]
        answers = [(await process.communicate())[0].decode().split() for process in processes]
        assert sorted(known for known, _ in answers) == ["False", "True", "True", "True"]
        assert len({answer for _, answer in answers}) == 1
        assert (len(await shop.orders()), len(await shop.records())) == (1, 1)

    async def test_a_process_that_dies_before_its_commit_leaves_the_key_free(self, shop: Shop, caller: Caller) -> None:
        """And one that dies after it leaves the answer and the message."""
        for when, expected in (("before", (False, True)), ("after", (True, False))):
            key = f"key {when}"
            command = (sys.executable, "-m", "tests.sql.enlisted_key_process", caller.kind, shop.store, shop.transport, when)
            process = await asyncio.create_subprocess_exec(*command, key, cwd=ROOT)
            assert await process.wait() == -9
            async with caller.session() as owned:
                entry = await owned.take(key)
                assert (entry.is_known, not entry.is_known) == expected
                await owned.call("rollback")
                if entry.is_known:
                    assert (entry.is_dispatched, await entry.dispatch()) == (False, True)
        assert (len(await shop.orders()), len(await shop.bodies(1))) == (1, 1)

    async def test_scoped_sessions_are_sessions(self, shop: Shop, caller: Caller) -> None:
        """Of both kinds."""
        if caller.kind == "async":
            scoped = async_scoped_session(caller.factory, scopefunc=asyncio.current_task)
            entry = await shop.endpoint.enlist(scoped, key="k1")
            await scoped.commit()
            await scoped.remove()
        else:
            registry: scoped_session[Session] = scoped_session(caller.factory)
            entry = shop.endpoint.enlist(registry, key="k1")
            registry.commit()
            registry.remove()
        assert not entry.is_known
        assert (await caller.place("A")).is_known

    async def test_what_a_rollback_would_not_undo_is_refused(self, shop: Shop) -> None:
        """An engine in AUTOCOMMIT, of either kind, and a connection of which a session asks for it."""
        for kind in KINDS:
            async with caller_of(shop, kind, isolation_level="AUTOCOMMIT") as caller, caller.session() as owned:
                with pytest.raises(SetupError, match="AUTOCOMMIT"):
                    await owned.take()
        async with caller_of(shop, "sync") as caller, caller.session() as owned:
            owned.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
            with pytest.raises(SetupError, match="AUTOCOMMIT"):
                await owned.take()

    async def test_messages_that_a_rollback_would_not_undo_are_refused(self, shop: Shop, caller: Caller) -> None:
        """A session asks for AUTOCOMMIT on its connection, which shows when it writes."""
        async with caller.session() as owned:
            await owned.run(lambda: owned.session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}))
            shop.endpoint.enlist(owned.session).publish(OrderPlaced("A"))
            with pytest.raises(SetupError, match="AUTOCOMMIT"):
                await owned.call("flush")
            await owned.call("rollback")
        assert await shop.records() == ()

    @pytest.mark.parametrize("key", ["k1", None])
    async def test_a_driver_that_commits_each_statement_is_refused(self, shop: Shop, key: str | None) -> None:
        """A rollback would leave a key without its work, and a message without its order."""
        engine = autocommitting_engine(shop.store)

        def place() -> None:
            with Session(engine) as session:
                outgoing = shop.endpoint.enlist(session, key=key) if key else shop.endpoint.enlist(session)
                outgoing.publish(OrderPlaced("A"))
                session.flush()

        try:
            with pytest.raises(SetupError, match="autocommit mode"):
                await asyncio.to_thread(place)
        finally:
            engine.dispose()
        assert await shop.records() == ()
        async with shop.endpoint.transaction(idempotency_key="k1") as tx:
            assert not tx.is_known

    async def test_a_driver_in_autocommit_mode_is_taken_if_the_engine_begins(self, shop: Shop) -> None:
        """So SQLAlchemy's page on SQLite has it."""
        engine = autocommitting_engine(shop.store)
        event.listen(engine, "begin", begin)
        caller = Caller(shop, "sync", sessionmaker(engine))
        try:
            async with caller.session() as owned:
                await owned.take()
                shop.endpoint.enlist(owned.session).publish(OrderPlaced("A"))
                await owned.call("flush")
                await owned.call("rollback")
            assert not (await caller.place("A")).is_known
            assert (await caller.place("A")).is_known
        finally:
            engine.dispose()
        assert (len(await shop.records()), await shop.orders()) == (1, ["A"])

    @pytest.mark.parametrize("key", ["k1", None])
    async def test_a_connection_that_moves_the_tables_is_refused(self, shop: Shop, caller: Caller, key: str | None) -> None:
        """No relay reads those of another schema."""
        async with caller.session() as owned:
            await owned.run(lambda: owned.session.connection(execution_options={"schema_translate_map": {None: "tenant"}}))
            if not key:
                shop.endpoint.enlist(owned.session).publish(OrderPlaced("A"))
            with pytest.raises(SetupError, match="schema_translate_map"):
                await (owned.take(key) if key else owned.call("flush"))
            await owned.call("rollback")

    async def test_a_two_phase_session_is_refused(self, caller: Caller) -> None:
        """Its prepared transaction may be committed at any time."""
        async with caller.session(twophase=True) as owned:
            with pytest.raises(SetupError, match="two-phase"):
                await owned.take()

    async def test_bad_arguments_are_refused_at_the_call(self, shop: Shop, caller: Caller) -> None:
        """Before anything is executed, and before anything is awaited."""
        async with caller.session() as owned:
            for options, error in (
                ({"key": ""}, InvalidKey),
                ({"key": "x" * 256}, InvalidKey),
                ({"key": "k", "wait": 0}, TransactionMisused),
                ({"key": "k", "max_commit": timedelta(days=1)}, TransactionMisused),
                ({"key": "k", "request": object()}, TransactionMisused),
            ):
                with pytest.raises(error):
                    shop.endpoint.enlist(owned.session, **options)
            with pytest.raises(SetupError, match="Session"):
                shop.endpoint.enlist(object(), key="k")  # type: ignore[call-overload]
            entry = await owned.take()
            with pytest.raises(InvalidEffect, match="cannot be stored"):
                entry.answer = object()

    async def test_the_answer_is_stored_with_the_key_at_the_commit_only(self, shop: Shop, caller: Caller) -> None:
        """A session that is flushed has not committed: another one finds nothing."""
        keys = tables_of(shop).keys
        async with caller.session() as owned:
            entry = await owned.take()
            entry.answer = 1
            await owned.call("flush")
            if make_url(shop.store).get_backend_name() != "sqlite":
                async with shop.sessions() as session:
                    assert (await session.execute(select(keys.c.key))).all() == []
            await owned.call("commit")
        async with shop.sessions() as session:
            assert len((await session.execute(select(keys.c.answer))).all()) == 1

    async def test_the_endpoint_of_this_process_sends_at_once(self, shop: Shop, caller: Caller) -> None:
        """Its relay hears of the commit."""
        async with host_of(shop.endpoint).running(observer=shop.watch):
            await caller.place("A")
            assert await shop.bodies(1) == ["A"]
            await shop.watch.until(Point.FORGET)
        assert await shop.records() == ()
