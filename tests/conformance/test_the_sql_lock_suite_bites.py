"""Every rule about locks fails on a broken store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onceonly.model.errors import ConflictError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.sql.store import SqlStore, SqlTransactions
from onceonly.sql.store.transactions import SqlTransaction
from onceonly.sql.store.unit import SqlUnit
from onceonly_conformance.on_sql import SqlTransactionSubject
from onceonly_conformance.sql_lock_suite import SqlLockSuite
from onceonly_conformance.suite import ENDPOINT, broken, rules
from tests.conformance.sql_subjects import ImpatientSubject, make_tables


class VagueStore(SqlStore):
    """Says of a lost race that its outcome is unknown."""

    async def begin(self, messages: Any, *, isolated: bool = False) -> SqlUnit:
        """Be vague."""
        try:
            return await super().begin(messages, isolated=isolated)
        except ConflictError as error:
            raise OutcomeUnknown("the database did not answer") from error


class OpenGate(SqlStore):
    """Fences nothing."""

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Do nothing."""


class VagueTransactions(SqlTransactions):
    """Says of a key that another attempt has that the outcome is unknown."""

    async def open(self, opening: TransactionAttempt) -> SqlTransaction | IdempotencyEntry:
        """Be vague."""
        try:
            return await super().open(opening)
        except ConflictError as error:
            raise OutcomeUnknown("the database did not answer") from error


BROKEN: dict[type, list[str]] = {
    VagueStore: ["a_unit_that_waits_for_another_process_loses", "a_unit_that_waits_for_its_own_process_loses"],
    VagueTransactions: ["a_transaction_that_waits_for_a_key_loses"],
    OpenGate: ["a_fence_that_waits_for_an_attempt_loses"],
    SqlStore: [],
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_store_fails_exactly_the_rules_that_it_breaks(kind: type, tmp_path: Path) -> None:
    """The store itself fails none."""
    await make_tables(tmp_path / "store.db")

    class Subject(SqlTransactionSubject):
        async def store(self) -> Any:
            return await self._opened(kind if issubclass(kind, SqlStore) else SqlStore)

        async def transactions(self, endpoint: str = ENDPOINT) -> Any:
            return await self._opened(kind if issubclass(kind, SqlTransactions) else SqlTransactions)

        async def _opened(self, kind: type) -> Any:
            return kind(await self.inner.database(), ENDPOINT)

    class Brittle(SqlLockSuite):
        @asynccontextmanager
        async def open_impatient(self) -> AsyncIterator[Any]:
            async with ImpatientSubject.open(tmp_path / "store.db") as subject:
                await subject.empty()
                yield Subject(subject)

    failed = {rule.removeprefix("test_") for rule in rules(SqlLockSuite) if await broken(Brittle(), rule)}
    assert failed == set(BROKEN[kind])


def test_every_rule_has_a_store_that_breaks_it() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for named in BROKEN.values() for rule in named} == set(rules(SqlLockSuite))
