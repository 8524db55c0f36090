"""Every rule about stores that forget fails on a broken one. The store on SQLite keeps them all; one call of it is broken."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sql_subjects import ForgettingSubject, SqlSubject, make_tables
from sqlalchemy import delete

from onceonly.drivers.sql import Database
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.stores.sql import Keeping, SqlStore
from onceonly.stores.sql.statements import row_of
from onceonly.stores.sql.tables import tables
from onceonly.stores.sql.unit import SqlUnit
from onceonly.testing.forgetting_suite import ForgettingSuite
from onceonly.testing.suite import ENDPOINT, broken, rules


class HistoricStore(SqlStore):
    """Keeps claims for ever."""

    def __init__(self, database: Database, endpoint: str) -> None:
        """Keep the history."""
        super().__init__(database, endpoint, keeping=Keeping.HISTORY)


class ForgettingStore(SqlStore):
    """Keeps every promise."""

    def __init__(self, database: Database, endpoint: str) -> None:
        """Forget."""
        super().__init__(database, endpoint, keeping=Keeping.UNTIL_FORGOTTEN)
        self.database = database


class LazyStore(ForgettingStore):
    """Lets messages without effects be, so their claims stay."""

    def keeps(self, record: Record) -> bool:
        """Look at the effects only."""
        return bool(record.effects)


class HalfForgettingStore(ForgettingStore):
    """Deletes the claims only."""

    async def forget(self, records: Sequence[Record]) -> None:
        """Put the records back."""
        kept = await self.find([record.identity for record in records])
        await super().forget(records)
        rows = [row_of(ENDPOINT, record, 1) for record in kept]
        async with self.database.writing() as connection:
            await connection.run_sync(self.database.dialect.insert_all, tables(self.database.prefix).records, rows)


class OblivionStore(ForgettingStore):
    """Forgets everything, whoever is asked for."""

    async def forget(self, records: Sequence[Record]) -> None:
        """Empty the tables."""
        own = tables(self.database.prefix)
        async with self.database.writing() as connection:
            for table in (own.records, own.claims):
                await connection.execute(delete(table))


class TokenLosingStore(ForgettingStore):
    """Gives back the effects, and nothing else."""

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> SqlUnit:
        """Strip what is owed."""
        unit = await super().begin(messages, isolated=isolated)
        unit.owed = tuple(Record(record.identity, record.effects) for record in unit.owed)
        return unit


BROKEN: dict[type[SqlStore], list[str]] = {
    HistoricStore: ["every_finished_message_is_to_be_forgotten", "a_forgotten_message_is_new"],
    LazyStore: ["every_finished_message_is_to_be_forgotten"],
    HalfForgettingStore: ["a_forgotten_message_is_new", "a_forgotten_message_may_be_handled_again"],
    OblivionStore: ["what_is_not_forgotten_is_known"],
    TokenLosingStore: ["a_record_gives_back_what_it_was_committed_with"],
}
BITES = [
    pytest.param(store, f"test_{rule}", id=f"{store.__name__}-{rule}") for store, found in BROKEN.items() for rule in found
]


def suite_of(store: type[SqlStore], place: Path) -> ForgettingSuite:
    """Make a suite that runs on this store."""

    class Subject(ForgettingSubject):
        async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
            return store(await self.database(), endpoint)

    class Bent(ForgettingSuite):
        @asynccontextmanager
        async def open_store(self) -> AsyncIterator[SqlSubject]:
            await make_tables(place)
            async with Subject.open(place) as subject:
                yield subject

    return Bent()


@pytest.mark.parametrize(("store", "rule"), BITES)
async def test_the_rule_fails_on_the_broken_store(store: type[SqlStore], rule: str, tmp_path: Path) -> None:
    """And what it fails on is the promise, not a mistake in the store's code."""
    assert await broken(suite_of(store, tmp_path / "subject.db"), rule)


@pytest.mark.parametrize("rule", rules(ForgettingSuite))
async def test_the_rule_passes_on_the_store_itself(rule: str, tmp_path: Path) -> None:
    """So it is the spoiled call that the others fail on."""
    assert not await broken(suite_of(ForgettingStore, tmp_path / "subject.db"), rule)


def test_every_rule_bites_somewhere() -> None:
    """A rule that nothing breaks proves nothing."""
    assert {f"test_{rule}" for found in BROKEN.values() for rule in found} == set(rules(ForgettingSuite))
