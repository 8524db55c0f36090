"""How long a transaction waits on PostgreSQL: for another one's key as long as was asked, for a connection apart from that."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.model.errors import CommitFailed, ConflictError
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database, open_database
from onceonly.sql.store import SqlTransactions
from onceonly.sql.store.transactions import SqlTransaction
from tests.servers.proxy import Proxy, listening
from tests.sql.harness import opened

WAIT = 200
FAR = 3 * WAIT / 1000
"""Seconds that a connection to a server takes which is far away: longer than any key is waited for here."""


class Far(Proxy):
    """Is slow to connect, and quick afterwards."""

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Take the time of a slow network, or of a starved machine, for which nothing can be waited."""
        await asyncio.sleep(FAR)
        await super().serve(client, to_client)


@asynccontextmanager
async def far_away(url: str) -> AsyncIterator[Database]:
    """Open the database through a slow network; nothing is connected yet."""
    place = urlsplit(url)
    async with listening(Far((place.hostname or "", place.port or 5432))) as (_, port):
        through = make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        async with opened(through) as far:
            yield far


def asking(attempt: str, key: str = "k") -> TransactionAttempt:
    """Make an attempt that waits for a key for a short while."""
    return TransactionAttempt(endpoint="shop", attempt=attempt, max_commit=60_000, key=key, fingerprint=bytes(16), wait=WAIT)


async def begun(transactions: SqlTransactions, opening: TransactionAttempt) -> SqlTransaction:
    """Open one that is not known yet."""
    found = await transactions.open(opening)
    assert not isinstance(found, IdempotencyEntry)
    return found


@pytest.mark.usefixtures("database")
async def test_the_way_to_the_server_is_no_waiting_for_a_key(url: str) -> None:
    """Nobody has it, so a slow first connection must not look as if somebody had."""
    async with far_away(url) as far:
        first = await begun(SqlTransactions(far, "shop"), asking("a1"))
        await first.commit(None, b"first")


@pytest.mark.usefixtures("database")
async def test_waiting_for_a_free_connection_is_no_waiting_for_a_key(url: str) -> None:
    """A pool that is used up is bounded by its own time-out."""
    engine = create_async_engine(url.replace("postgresql+psycopg:", "postgresql+psycopg_async:"), pool_size=1, max_overflow=0)
    database = await open_database(engine, clock=LIVE.clock)
    transactions = SqlTransactions(database, "shop")
    first = await begun(transactions, asking("a1", "of another"))
    second = asyncio.create_task(begun(transactions, asking("a2")))
    await asyncio.wait({second}, timeout=FAR)
    assert not second.done()
    await first.commit(None, None)
    (await second).abandon()
    await database.settle()
    await engine.dispose()


async def test_a_key_that_somebody_has_is_waited_for_as_long_as_asked(database: Database) -> None:
    """Not as long as for any lock; then the connection serves on, and the first one's answer is found."""
    transactions = SqlTransactions(database, "shop")
    first = await begun(transactions, asking("a1"))
    clock = asyncio.get_running_loop().time
    since = clock()
    with pytest.raises(ConflictError, match=f"used this idempotency key for more than {WAIT} ms"):
        await transactions.open(asking("a2"))
    assert clock() - since >= WAIT / 1000
    await first.commit(None, b"first")
    found = await transactions.open(asking("a3"))
    assert isinstance(found, IdempotencyEntry)
    await database.settle()
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # a pool that counts


async def test_without_a_server_nothing_was_done_for_sure(url: str) -> None:
    """Nobody listens there: COMMIT was never said, so it is not OutcomeUnknown."""
    async with opened(make_url(url).set(port=1).render_as_string(hide_password=False)) as nowhere:
        with pytest.raises(CommitFailed):
            await SqlTransactions(nowhere, "shop").open(asking("a1"))
