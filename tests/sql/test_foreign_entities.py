"""Entities and clients' keys that another program has written cost themselves. SQLite stores any value in any column."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from onceonly.model.errors import PermanentFailure
from onceonly.model.transaction import key_of
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.store.statements import stored_bytes
from onceonly.sql.store.transactions import SqlTransactions
from onceonly_conformance.clock import ManualClock
from tests.fuzzing import Inputs
from tests.sql.every_database import on, states

IN_A_TABLE = 50
"""Of so many inputs one is read from a table; all are read by the function that the table's reader calls."""


@pytest.fixture
async def file(tmp_path: Path) -> AsyncIterator[Database]:
    """Open a SQLite file with the tables of a store."""
    database = await open_database(f"sqlite:///{tmp_path}/foreign.db", clock=ManualClock(1_800_000_000_000))
    await create(database, SCHEMA)
    yield database
    await database.close()


async def write(database: Database, statement: str, *values: object) -> None:
    """Write past the library."""
    async with database.writing() as connection:
        await connection.exec_driver_sql(statement, values)


async def put_state(database: Database, key: str, state: object) -> None:
    """Write an entity."""
    await write(
        database, "INSERT OR REPLACE INTO onceonly_entities (key, state, changed_at) VALUES (?, ?, 1)", key.encode(), state
    )


async def put_key(database: Database, key: str, fingerprint: object, answer: object) -> None:
    """Write a client's key."""
    statement = "INSERT OR REPLACE INTO onceonly_keys (key, attempt, fingerprint, answer, stored_at) VALUES (?, 'a', ?, ?, 1)"
    await write(database, statement, key_of("shop", key), fingerprint, answer)


@pytest.mark.parametrize("state", [5, 10**12, 0.5, "text"])
async def test_a_state_that_is_not_bytes_costs_its_own_message(file: Database, state: object) -> None:
    """A number would be taken for a length, and its bytes made: a terabyte."""
    store = SqlStore(file, "shop")
    await put_state(file, "odd", state)
    await put_state(file, "fine", b"{}")
    with pytest.raises(PermanentFailure, match="the state of entity 'odd' cannot be read"):
        await store.begin([on("odd")])
    assert await states(store, "fine") == {"fine": b"{}"}


@pytest.mark.parametrize(("fingerprint", "answer"), [(10**12, b"{}"), ("text", b"{}"), (b"f", 10**12), (b"f", "text")])
async def test_a_key_that_is_not_bytes_costs_its_own_request(file: Database, fingerprint: object, answer: object) -> None:
    """The error says which part."""
    transactions = SqlTransactions(file, "shop")
    await put_key(file, "odd", fingerprint, answer)
    await put_key(file, "fine", b"f", b"{}")
    with pytest.raises(PermanentFailure, match="of this idempotency key cannot be read"):
        await transactions.entry("odd")
    found = await transactions.entry("fine")
    assert found is not None
    assert found.answer == b"{}"


async def test_fuzz_states_and_keys(file: Database) -> None:
    """Each is read as bytes, or refused so that only what needs it fails."""
    inputs = Inputs()
    store, transactions = SqlStore(file, "shop"), SqlTransactions(file, "shop")
    for number in inputs.rounds():
        value = inputs.column()
        with suppress(PermanentFailure):
            assert stored_bytes(value, "it") == value
        if number % IN_A_TABLE == 0:
            await put_state(file, "x", value)
            await put_key(file, "x", value, inputs.column())
            with suppress(PermanentFailure):
                (await store.begin([on("x")])).abandon()
            with suppress(PermanentFailure):
                await transactions.entry("x")
