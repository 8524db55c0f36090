"""What becomes of units and transactions that wait for a lock of another one for longer than the database allows."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from msgspec.structs import replace

from onceonly.model.errors import CommitFailed, ConflictError
from onceonly.model.record import Record
from onceonly.model.transaction import TransactionAttempt
from onceonly.ports.store import BeginResult
from onceonly.ports.transactions import OpenTransaction
from onceonly_conformance.on_sql import SqlTransactionSubject
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import ONE_EFFECT, WholeStore
from onceonly_conformance.suite import Suite, raises
from onceonly_conformance.transaction_suite import fence, found, opened_by, opening, record_of


class SqlLockSuite(Suite):
    """The rules of locks. Override `open_impatient`.

    A unit or transaction that waits until the database gives up raises ConflictError. It has lost a race and written nothing.
    """

    def open_impatient(self) -> AbstractAsyncContextManager[SqlTransactionSubject]:
        """Open an empty store for one rule, whose statements wait for a second at most. Clean up afterwards."""
        raise NotImplementedError

    async def test_a_unit_that_waits_for_another_process_loses(self) -> None:
        """`begin` raises ConflictError while another process has the message. That process can still commit."""
        async with self.open_impatient() as subject:
            await self._loses(subject, await subject.store(), await subject.store())

    async def test_a_unit_that_waits_for_its_own_process_loses(self) -> None:
        """`begin` raises ConflictError while another unit of the process has the message. That unit can still commit."""
        async with self.open_impatient() as subject:
            store = await subject.store()
            await self._loses(subject, store, store)

    async def test_a_transaction_that_waits_for_a_key_loses(self) -> None:
        """`open` raises ConflictError while another process has the key, however long the caller would wait."""
        async with self.open_impatient() as subject, _opened(subject, opening("a1", key="k")) as first:
            async with asyncio.timeout(self.patience), raises(ConflictError):
                await opened_by(subject, opening("a2", key="k"))
            await first.commit(None, b"first")
            assert (await found(subject, "k")).answer == b"first"

    async def test_a_fence_that_waits_for_an_attempt_loses(self) -> None:
        """`fence` raises ConflictError or CommitFailed while it has to wait for a transaction; else that one cannot commit."""
        asked = opening("a1")
        async with self.open_impatient() as subject, _opened(subject, asked) as opened:
            record, is_out = record_of(asked, opened), True
            try:
                async with asyncio.timeout(self.patience):
                    assert await fence(subject, record, asked) is None
            except (CommitFailed, ConflictError):
                is_out = False
            try:
                await opened.commit(record, None)
            except ConflictError:
                assert is_out
            else:
                assert not is_out

    async def _loses(self, subject: SqlTransactionSubject, store: WholeStore, other: WholeStore) -> None:
        """Begin in one store, and then in the other one with the same message."""
        unit = await store.begin([message()])
        try:
            async with asyncio.timeout(self.patience), raises(ConflictError):
                await other.begin([message()])
            await unit.commit([Record(message().identity, ONE_EFFECT)])
        finally:
            unit.abandon()
        again = await (await subject.store()).begin([message()])
        again.abandon()
        assert replace(again.found, ages=()) == BeginResult(pending=(Record(message().identity, ONE_EFFECT),))


@asynccontextmanager
async def _opened(subject: SqlTransactionSubject, asked: TransactionAttempt) -> AsyncIterator[OpenTransaction]:
    opened = await opened_by(subject, asked)
    try:
        yield opened
    finally:
        opened.abandon()
