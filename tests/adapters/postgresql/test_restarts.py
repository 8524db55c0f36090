"""A server of the test's own: refused as a standby, stopped and crashed under units, and used again when it is back."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from onceonly.model.errors import CommitFailed, OutcomeUnknown, RetryableError, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import check, create
from onceonly.sql.store import SCHEMA, SqlStore
from tests.servers.available import OwnPostgresql, own_postgresql
from tests.sql.harness import add, handle, look, message, opened, orders, records


@pytest.fixture(scope="module")
def server() -> Iterator[OwnPostgresql]:
    """Make one, and start it."""
    with own_postgresql() as server:
        server.start()
        yield server


@pytest.mark.parametrize(("driver", "how"), [("asyncpg", "fast"), ("psycopg", "immediate"), ("asyncpg", "immediate")])
async def test_a_restart_in_the_middle_of_a_unit_loses_nothing(server: OwnPostgresql, driver: str, how: str) -> None:
    """Crash here: 1 a unit is open and another committed, 2 the server is gone, 3 it is back: one is new, one pending."""
    names = [f"{driver}-{how}-{number}" for number in range(3)]
    async with opened(server.url.replace("postgresql:", f"postgresql+{driver}:"), tables=True) as database:
        store = SqlStore(database, "shop")
        await handle(store, message(names[0]), decided=True)
        unit = await store.begin([message(names[1])])
        await add(unit, names[1])
        server.stop(how)
        with pytest.raises(RetryableError) as ended:
            await unit.commit(records(message(names[1])))
        assert type(ended.value) in {
            CommitFailed,
            OutcomeUnknown,
        }  # as COMMIT was said or not when it was noticed; no message is to blame
        with pytest.raises(OutcomeUnknown):
            await store.begin([message(names[2])])
        server.start()
        found = {"new": [names[1]], "pending": [names[0]]}
        assert await look(store, *(message(name) for name in names[:2])) == found
        await handle(store, message(names[1]))
        assert {names[0], names[1]} <= set(await orders(database))
        await database.settle()
        assert database.engine.pool.checkedout() == 0


async def test_a_crash_of_the_server_loses_no_message_that_was_sent(server: OwnPostgresql) -> None:
    """It may undo what was taken or acknowledged last, so that it is delivered again, but never a `send`."""
    async with opened(server.url + "?prefix=crash_") as database:
        await create(database, QUEUE)
        transport = SqlTransport(database, "shop", lease=0.05)
        await transport.declare([Topology(endpoint="shop")])
        settled, kept = (Send(message=message(name), to="shop") for name in ("settled", "kept"))
        assert await transport.send([settled]) == (Answer.TAKEN,)
        await transport.ack(await transport.receive(1, 5))
        assert await transport.send([kept]) == (Answer.TAKEN,)
        server.stop("immediate")
        server.start()
        found: set[str] = set()
        while "kept" not in found:
            with suppress(RetryableError):  # of connections that the server has closed
                taken = await transport.receive(1, 5)
                assert taken, "a message that was sent is lost"
                found |= {dict(each.headers)["ce-id"] for each in taken}
                await transport.ack(taken)
        assert found <= {"settled", "kept"}


async def test_a_standby_is_refused(server: OwnPostgresql) -> None:
    """Nothing can be claimed there."""
    server.stop()
    server.start(standby=True)
    async with opened(server.url) as database:
        with pytest.raises(SetupError, match="standby"):
            await check(database, SCHEMA)
