"""What handlers may do to the database transaction of their unit, rule by rule. It is the unit's, whatever they execute."""

from contextlib import AbstractAsyncContextManager, suppress
from typing import cast

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.conformance.on_sql import SqlSubject
from onceonly.conformance.samples import message
from onceonly.conformance.store_subject import ONE_EFFECT, handle, look
from onceonly.conformance.suite import Suite
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Store

_ERRORS = (OnceOnlyError, SQLAlchemyError, RuntimeError)
"""What the store, SQLAlchemy and a guard of the session may raise."""


_STATEMENTS = {
    "m1": "COMMIT",
    "m2": "ROLLBACK",
    "m3": "/* now */ COMMIT",
    "m4": "/* now */ ROLLBACK",
    "m5": "SELECT nonsense FROM nowhere",
}
"""What handlers execute, by the ids of their messages."""


class SqlGuardSuite(Suite):
    """The rules about handlers that end or break the database transaction. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[SqlSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_handler_never_commits_its_data_without_its_message(self) -> None:
        """Whatever a handler executes, its unit commits its data and its message together, or neither."""
        async with self.open_store() as subject:
            for name, statement in _STATEMENTS.items():
                is_committed = await self._committed(subject, message(name), statement)
                assert (await look(subject, message(name))).new == (() if is_committed else (message(name),))
                assert (name in await subject.read()) is is_committed

    async def test_a_transaction_that_was_ended_disturbs_no_other_unit(self) -> None:
        """The next units of the same process get a connection that works."""
        async with self.open_store() as subject:
            store = await subject.store()
            for name, statement in _STATEMENTS.items():
                await self._committed(subject, message(name), statement, store)
                for other in ("a", "b"):
                    await handle(subject, message(f"{name}{other}"), store=store)
                assert {f"{name}a", f"{name}b"} <= (await subject.read()).keys()

    async def _committed(self, subject: SqlSubject, asked: Message, statement: str, store: Store | None = None) -> bool:
        """Handle a message whose handler executes a statement and hides its error. Return whether the unit was committed."""
        unit = await (store or await subject.store()).begin([asked])
        session = cast("AsyncSession", unit.resources.get(AsyncSession))
        try:
            async with unit.resources.attempt():
                await subject.write(unit.resources, asked.id, "handled")
                with suppress(*_ERRORS):
                    await session.execute(text(statement))
            await unit.commit([Record(asked.identity, ONE_EFFECT)])
        except _ERRORS:
            return False
        finally:
            unit.abandon()
        return True
