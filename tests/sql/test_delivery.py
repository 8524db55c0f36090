"""The shipping algorithm over the SQL store: the bad messages of a batch are found, the good ones are handled once."""

from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.blame import run
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.intake import PendingMessage
from onceonly.endpoint.received_message import read
from onceonly.model.errors import ConflictError, HandlerFailed, RetryableError
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Decision
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.ports.bundle import Ports
from onceonly.ports.store import Resources
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database
from onceonly.sql.store import SqlDeadLetters, SqlStore
from tests.one_by_one import OneByOne
from tests.sql.harness import Line, Order, look, message, messages, orders, session_of, statements


class ShopHandlers(OneByOne):
    """Adds an order for each message; some messages name what goes wrong with them."""

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read the way an endpoint does."""
        return read(delivery, (), identity=None, max_body=1 << 20, places={}, needs_token=False)

    async def handle(self, message: Message, resources: Resources, attempt: str = "", response: object = None) -> Decision:
        """Add an order, the way an endpoint runs a handler."""
        session = session_of(resources)
        try:
            async with resources.attempt():
                session.add(Order(id=message.id))
                match message.body:
                    case b"raises":
                        int("no number")
                    case b"breaks a constraint":
                        session.add(Order(id="m0"))
                    case b"swallows":
                        session.add(Order(id="m0"))
                        with suppress(IntegrityError):
                            await session.flush()
                    case b"breaks it at commit":
                        session.add(Line(order_id="nobody"))
                    case reach:
                        await reach_past(session, reach)
        except (HandlerFailed, RetryableError, ConflictError):
            raise
        except Exception as error:
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=repr(error))) from error
        return Decision()

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge by the default policy."""
        return decide_retry(Retry(), failure, attempts=attempts, history=history, now=0, fraction=0)


async def reach_past(session: AsyncSession, reach: bytes) -> None:
    """Do what a handler should not, if this names it."""
    match reach:
        case b"commits in the driver":
            await (await driver_of(session)).commit()
        case b"runs a script":
            await (await driver_of(session)).executescript("SELECT 1")
        case b"rolls back in SQL":
            with suppress(IntegrityError):
                await session.execute(text("INSERT OR ROLLBACK INTO orders VALUES ('same', 0), ('same', 0)"))
            await session.execute(text("INSERT INTO orders VALUES ('after', 0)"))
        case b"has another engine":
            await write_elsewhere(session)


async def driver_of(session: AsyncSession) -> Any:
    """Reach for the driver's connection."""
    return (await (await session.connection()).get_raw_connection()).driver_connection


async def write_elsewhere(session: AsyncSession) -> None:
    """Write to the unit's own file on a connection of one's own, which its write lock keeps out."""
    bind = session.bind
    assert isinstance(bind, AsyncConnection)
    own = create_async_engine(bind.engine.url, connect_args={"timeout": 0})
    try:
        async with own.begin() as connection:
            await connection.execute(text("INSERT INTO orders VALUES ('own', 0)"))
    finally:
        await own.dispose()


def ports(database: Database) -> Ports:
    """Put the ports together; nothing is sent here."""
    driver = Live()
    store = SqlStore(database, "shop")
    return Ports(
        endpoint="shop",
        store=store,
        fence=store,
        pending=store,
        handlers=ShopHandlers(),
        admission=StoreAdmission(),
        effects=NoArtifacts(),
        transport=MemoryTransport(driver, "shop", clock=database.clock),
        dead_letters=SqlDeadLetters(database),
    )


def items(**bad: bytes) -> list[PendingMessage]:
    """Make twenty messages, some of them bad."""
    asked = [message(each.id, body=bad.get(each.id, b"{}")) for each in messages(20)]
    return [PendingMessage(each, ()) for each in asked]


@pytest.mark.parametrize(
    ("bad", "units"),
    [
        ({"m3": b"raises", "m11": b"swallows", "m19": b"raises"}, 2),
        ({"m3": b"raises", "m7": b"breaks a constraint", "m12": b"breaks a constraint"}, 4),
    ],
    ids=["that raise", "whose rows are refused"],
)
async def test_any_number_of_bad_handlers_costs_an_extra_pass(
    database: Database, store: SqlStore, bad: dict[str, bytes], units: int
) -> None:
    """In the second pass those that raise are left out, and the others are committed.

    Rows that are refused have no name on them. They cost one more pass, in two halves.
    """
    with statements(database) as heard:
        ran = await run(items(**bad), ports(database))
    assert {identity.id for processed in ran.processed for identity, _ in processed.failed} == set(bad)
    assert heard.count("BEGIN IMMEDIATE") == units
    assert await orders(database) == sorted(each.id for each in messages(20) if each.id not in bad)
    assert (await look(store, message("m3"), message("m4"))) == {"new": ["m3"], "mismatched": ["m4"]}


async def test_what_only_commit_shows_is_found_by_halving(database: Database) -> None:
    """Each good message is handled in some half; the bad one is alone in the end, and is blamed."""
    ran = await run(items(m5=b"breaks it at commit"), ports(database))
    failed = [(identity.id, failure) for part in ran.processed for identity, failure in part.failed]
    assert [name for name, _ in failed] == ["m5"]
    assert failed[0][1].kind is FailureKind.COMMIT
    assert "FOREIGN KEY" in failed[0][1].reason
    assert await orders(database) == sorted(each.id for each in messages(20) if each.id != "m5")


async def test_both_kinds_together_are_told_apart(database: Database) -> None:
    """Nothing good is lost, nothing bad is kept."""
    ran = await run(items(m5=b"breaks it at commit", m6=b"swallows", m13=b"breaks it at commit"), ports(database))
    failed = {identity.id for part in ran.processed for identity, _ in part.failed}
    assert failed == {"m5", "m6", "m13"}
    assert (ran.conflicted, ran.unknown) == ((), ())
    assert await orders(database) == sorted(each.id for each in messages(20) if each.id not in failed)


async def test_who_reaches_past_the_session_fails_alone(database: Database) -> None:
    """Commits in the driver, rollbacks in SQL and other engines cost nobody else's message, and nothing is acked unhandled."""
    bad = {
        "m2": b"commits in the driver",
        "m5": b"runs a script",
        "m9": b"rolls back in SQL",
        "m14": b"has another engine",
    }
    asked = [message(each.id, body=bad.get(each.id, b"{}")) for each in messages(20)]
    wired = ports(database)
    await wired.transport.declare([Topology(endpoint="shop", events=())])
    await wired.transport.send([Send(message=each, to="shop") for each in asked])
    taken = await wired.transport.receive(20, 0)
    report = await deliver(taken, wired)
    assert (report.handled, report.retried, report.conflicted, report.unknown) == (16, 4, 0, 0)
    assert await orders(database) == sorted(each.id for each in messages(20) if each.id not in bad)
    reasons = [copy.history[-1].reason for copy in await wired.transport.receive(20, 0)]
    told = ("not authorized", "not authorized", "something other than onceonly ended", "database is locked")
    assert [words in reason for words, reason in zip(told, reasons, strict=True)] == [True] * 4
