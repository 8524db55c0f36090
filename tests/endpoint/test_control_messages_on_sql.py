"""Control messages finish the transactions of a SQL store, without a relay."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import CommitFailed, ConflictError, ControlMessages, Endpoint, SetupError
from onceonly.algorithms.control import CONTROL
from onceonly.algorithms.relay import relay
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler
from onceonly.model.record import Answer
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.sql.database import open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA
from tests.endpoint.test_control_messages import Away
from tests.endpoint.transaction_harness import QUICK, Account, SimulatedEndpoint, deposit

LATER_SECONDS = 10_000
KEYS = pytest.mark.parametrize("key", [None, "k"])


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of an empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/bank.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    place = f"{url}{'&' if '?' in url else '?'}prefix=c{uuid4().hex[:8]}_"
    asyncio.run(create_tables(place))
    return place


async def create_tables(url: str) -> None:
    """Create the tables of a store."""
    database = await open_database(url, clock=LIVE.clock)
    try:
        await create(database, SCHEMA)
    finally:
        await database.close()


@pytest.fixture
async def simulated(store: str) -> AsyncIterator[SimulatedEndpoint]:
    """Open an endpoint."""
    simulated = SimulatedEndpoint(store=store)
    async with simulated.opened():
        yield simulated


async def die(simulated: SimulatedEndpoint, where: str, key: str | None = None) -> None:
    """Make a transaction in a process that dies there."""
    settings = simulated.bank.settings
    other = SimulatedEndpoint(store=settings.store, transport=settings.transport)
    async with host_of(other.bank).opened(environment=simulated.environment, observer=CrashAt(where)):
        with pytest.raises(ProcessCrash):
            async with other.bank.transaction(idempotency_key=key) as tx:
                await deposit(tx)


@KEYS
async def test_what_a_dead_process_committed_is_sent(simulated: SimulatedEndpoint, key: str | None) -> None:
    """It died after the commit, and no relay runs."""
    await die(simulated, "after-commit", key)
    assert await simulated.received() == []
    assert await simulated.pass_time(41) == [CONTROL, "Deposit"]
    assert await simulated.balance() == 1
    assert await simulated.pass_time(LATER_SECONDS) == []
    assert simulated.handled == ["B"]


@KEYS
async def test_a_transaction_that_was_sent_ends_its_control_message_at_the_first_look(
    simulated: SimulatedEndpoint, key: str | None
) -> None:
    """Its record is deleted. Its key shows that it was committed, and without a key a mark does."""
    async with simulated.bank.transaction(idempotency_key=key) as tx:
        await deposit(tx)
    assert await simulated.received() == ["Deposit"]
    assert await simulated.pass_time(41) == [CONTROL]
    assert await simulated.pass_time(LATER_SECONDS) == []


@KEYS
async def test_what_was_never_committed_is_given_up_for_good(simulated: SimulatedEndpoint, key: str | None) -> None:
    """It died before the commit. The key is free for the next attempt."""
    await die(simulated, "before-commit", key)
    assert await simulated.pass_time(41) == [CONTROL]
    assert await simulated.pass_time(51) == [CONTROL]
    assert await simulated.pass_time(LATER_SECONDS) == []
    assert await simulated.balance() == 0
    async with simulated.bank.transaction(idempotency_key=key) as tx:
        await deposit(tx)
    assert await simulated.balance() == 1


async def test_a_transaction_that_was_given_up_cannot_be_committed(simulated: SimulatedEndpoint) -> None:
    """Its control messages came first, because the process was frozen. Nothing is committed, and nothing is sent."""
    controls = simulated.ports.controls
    assert controls is not None
    waits, goes_on = asyncio.Event(), asyncio.Event()

    class Frozen(Away):
        """A transport that takes control messages, and lets the process wait before its commit."""

        async def send(self, sends: Any) -> tuple[Answer, ...]:
            answers: tuple[Answer, ...] = await self._inner.send(sends)
            waits.set()
            await goes_on.wait()
            return answers

    async def commit() -> None:
        frozen = simulated.ports._replace(transport=Frozen(simulated.ports.transport, Answer.TAKEN))
        with host_of(simulated.bank).bind(frozen, environment=simulated.environment):
            async with simulated.bank.transaction() as tx:
                tx.send(Account("B"), to="sink")

    running = asyncio.create_task(commit())
    async with asyncio.timeout(60):
        await waits.wait()
        simulated.clock.advance(41_000)
        if (await simulated.received()) != [CONTROL]:
            pytest.fail("the control message did not come")
        if "sqlite" not in str(simulated.bank.settings.store):  # where the open transaction has the only lock, `bury` waits
            assert await simulated.pass_time(51) == [CONTROL]
            goes_on.set()
            with pytest.raises(ConflictError, match="cancelled"):
                await running
            assert (await simulated.ports.transport.depth("sink")).waiting == 0
        else:
            goes_on.set()
            await running
            assert await simulated.pass_time(51) == [CONTROL]
            assert (await simulated.ports.transport.depth("sink")).waiting == 1
    assert await simulated.pass_time(LATER_SECONDS) == []


async def test_a_relay_may_be_first(simulated: SimulatedEndpoint) -> None:
    """The control message finds nothing left to do."""
    await die(simulated, "after-commit")
    pending = simulated.ports.pending
    assert pending is not None
    simulated.clock.advance(20_000)
    found = await pending.take(simulated.clock.now(), 10, lease=1000)
    assert len((await relay(found, simulated.ports)).finished) == 1
    assert await simulated.received() == ["Deposit"]
    assert await simulated.pass_time(41) == [CONTROL]
    assert await simulated.pass_time(LATER_SECONDS) == []


@KEYS
async def test_another_endpoints_worker_finishes_what_one_left_that_only_sends(
    simulated: SimulatedEndpoint, key: str | None
) -> None:
    """Its process died after the commit. The record is deleted after it was sent."""
    settings = simulated.bank.settings
    web = Endpoint("web", store=settings.store, transport=settings.transport, control=ControlMessages(processed_by="bank"))
    async with host_of(web).opened(environment=simulated.environment, observer=CrashAt("after-commit")) as ports:
        with pytest.raises(ProcessCrash):
            async with web.transaction(idempotency_key=key) as tx:
                await deposit(tx)
        assert await simulated.received() == []
        assert await simulated.pass_time(11) == [CONTROL, "Deposit"]
        assert await simulated.pass_time(LATER_SECONDS) == []
        assert ports.pending is not None
        assert await ports.pending.undispatched(simulated.clock.now() + 1, 10) == ()
    assert simulated.handled == ["B"]


@pytest.mark.parametrize("answer", [CommitFailed, Answer.REFUSED, Answer.UNKNOWN])
async def test_without_a_broker_nothing_is_committed(simulated: SimulatedEndpoint, answer: Any) -> None:
    """The caller is told so."""
    broken = simulated.ports._replace(transport=Away(simulated.ports.transport, answer))
    with host_of(simulated.bank).bind(broken, environment=simulated.environment), pytest.raises(CommitFailed):
        async with simulated.bank.transaction(idempotency_key="k") as tx:
            await deposit(tx)
    assert await simulated.balance() == 0


async def test_a_sql_store_has_no_control_messages_unless_it_is_asked_for(tmp_path: Path) -> None:
    """A relay finishes its transactions."""
    simulated = SimulatedEndpoint(store=f"sqlite:///{tmp_path}/bank.db", control=None)
    async with simulated.opened():
        async with simulated.bank.transaction() as tx:
            await deposit(tx)
        assert await simulated.received() == ["Deposit"]
        assert await simulated.pass_time(LATER_SECONDS) == []


async def test_an_endpoint_with_handlers_receives_its_own_control_messages(tmp_path: Path) -> None:
    """`processed_by` is refused, on SQL and on documents."""
    for store in (f"sqlite:///{tmp_path}/bank.db", "memory://processed"):
        simulated = SimulatedEndpoint(store=store, control=ControlMessages(processed_by="other"))
        with pytest.raises(SetupError, match="remove processed_by"):
            async with simulated.opened():
                pass
        with pytest.raises(SetupError, match="remove processed_by"):
            async with simulated.bank.transaction():
                pass


async def test_an_endpoint_without_handlers_names_who_receives_them(tmp_path: Path) -> None:
    """Without that it is refused."""
    web = Endpoint("web", store=f"sqlite:///{tmp_path}/web.db", transport="memory://web", control=QUICK)
    with pytest.raises(InvalidHandler, match="processed_by"):
        async with web.opened():
            pass
    with pytest.raises(SetupError, match=r'has no handlers.*processed_by="'):
        async with web.transaction():
            pass


async def test_a_transport_that_has_no_queue_is_refused(tmp_path: Path) -> None:
    """A control message would come to nobody."""
    shop = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport="kafka://localhost:1", control=QUICK)

    @shop.handler
    async def take(account: Account) -> None:
        pass

    with pytest.raises(SetupError, match=r"because it has control=.*remove it and run onceonly relay"):
        async with shop.transaction():
            pass
