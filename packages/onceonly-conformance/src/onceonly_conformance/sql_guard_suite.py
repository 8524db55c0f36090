"""What handlers may do to the database transaction of their unit, rule by rule. It is the unit's, whatever they execute."""

from contextlib import AbstractAsyncContextManager, suppress
from inspect import isawaitable
from itertools import product
from typing import Any, NamedTuple, cast

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Store
from onceonly_conformance.on_sql import SqlSubject
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import ONE_EFFECT, handle, look
from onceonly_conformance.suite import Suite

_ERRORS = (OnceOnlyError, SQLAlchemyError, RuntimeError)
"""What the store, SQLAlchemy and a guard of the session may raise."""


_STATEMENTS = ("COMMIT", "ROLLBACK", "/* now */ COMMIT", "/* now */ ROLLBACK", "SELECT nonsense FROM nowhere")
"""What handlers execute in their session."""
_IN_DRIVER = ("ROLLBACK", "CLOSE", "INVALIDATE")
"""What handlers do with the driver's own connection, which no guard of a session sees.

CLOSE closes it. INVALIDATE has SQLAlchemy drop it, as after the loss of a connection.
"""


class SqlGuardSuite(Suite):
    """The rules about handlers that end or break the database transaction. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[SqlSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_handler_never_commits_its_data_without_its_message(self) -> None:
        """Whatever a handler executes, its unit commits its data and its message together, or neither.

        A COMMIT in the driver's own connection is excepted, unless `Dialect.blocks_commit` is true.
        """
        async with self.open_store() as subject:
            for name, ending, isolated in await _endings(subject):
                is_committed = await self._committed(subject, message(name), ending, isolated=isolated)
                assert (await look(subject, message(name))).new == (() if is_committed else (message(name),)), ending
                assert (name in await subject.read()) is is_committed, ending

    async def test_a_transaction_that_was_ended_disturbs_no_other_unit(self) -> None:
        """The next units of the same process get a connection that works."""
        async with self.open_store() as subject:
            store = await subject.store()
            for name, ending, isolated in await _endings(subject):
                await self._committed(subject, message(name), ending, store, isolated=isolated)
                for other in ("a", "b"):
                    await handle(subject, message(f"{name}{other}"), store=store)
                assert {f"{name}a", f"{name}b"} <= (await subject.read()).keys(), ending

    async def test_what_a_handler_is_given_ends_with_it(self) -> None:
        """The next handler of the unit gets another session, and sees what was written. The first one raises RuntimeError."""
        async with self.open_store() as subject:
            for isolated in (False, True):
                asked = [message(f"{name}{isolated}") for name in ("a", "b")]
                unit = await (await subject.store()).begin(asked, isolated=isolated)
                sessions = []
                try:
                    for each in asked:
                        async with unit.resources.attempt():
                            session = cast("AsyncSession", unit.resources.get(AsyncSession))
                            await subject.write(unit.resources, each.id, "handled")
                            sessions.append(session)
                    assert sessions[0] is not sessions[1]
                    for session in sessions:
                        await _is_refused(session)
                    await unit.commit([Record(each.identity) for each in asked])
                finally:
                    unit.abandon()
                assert {each.id for each in asked} <= (await subject.read()).keys()

    async def test_a_failed_handler_leaves_nothing_that_works(self) -> None:
        """Its session raises RuntimeError, whether its work was undone or its unit is given up."""
        async with self.open_store() as subject:
            for isolated in (False, True):
                asked = [message(f"{name}{isolated}") for name in ("c", "d")]
                unit = await (await subject.store()).begin(asked, isolated=isolated)
                try:
                    with suppress(ZeroDivisionError):
                        async with unit.resources.attempt():
                            session = cast("AsyncSession", unit.resources.get(AsyncSession))
                            raise ZeroDivisionError
                    await _is_refused(session)
                finally:
                    unit.abandon()

    async def _committed(
        self, subject: SqlSubject, asked: Message, ending: "_Ending", store: Store | None = None, *, isolated: bool
    ) -> bool:
        """Handle a message whose handler ends its transaction and hides the error. Return whether the unit was committed."""
        unit = await (store or await subject.store()).begin([asked], isolated=isolated)
        session = cast("AsyncSession", unit.resources.get(AsyncSession))
        try:
            async with unit.resources.attempt():
                await subject.write(unit.resources, asked.id, "handled")
                with suppress(Exception):  # also a driver's own
                    await ending.end(session)
            await unit.commit([Record(asked.identity, ONE_EFFECT)])
        except _ERRORS:
            return False
        finally:
            unit.abandon()
        return True


async def _is_refused(session: AsyncSession) -> None:
    """Make sure that a session cannot be used any more."""
    try:
        await session.execute(text("SELECT 1"))
    except RuntimeError:
        return
    raise AssertionError("a session works after its handler ended")


class _Ending(NamedTuple):
    words: str
    in_driver: bool

    async def end(self, session: AsyncSession) -> None:
        if not self.in_driver:
            await session.execute(text(self.words))
            return
        connection = await session.connection()
        if self.words == "INVALIDATE":
            await connection.invalidate()
            return
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if self.words == "CLOSE":
            closing = driver.close()
        elif hasattr(driver, "execute"):
            closing = driver.execute(self.words)
        else:
            closing = driver.query(self.words)
        if isawaitable(closing):
            await closing


async def _endings(subject: SqlSubject) -> list[tuple[str, _Ending, bool]]:
    """Return what handlers do, each in a plain and in an isolated unit, with a name for its message."""
    blocks_commit = (await subject.database()).dialect.blocks_commit
    endings = [_Ending(words, in_driver=False) for words in _STATEMENTS]
    endings += [_Ending(words, in_driver=True) for words in (*_IN_DRIVER, *(("COMMIT",) if blocks_commit else ()))]
    both = product(endings, (False, True))
    return [(f"m{number}", ending, isolated) for number, (ending, isolated) in enumerate(both)]
