"""A server goes away in the middle of the demo, stopped or crashed, and comes back: every flight counts once."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from onceonly_demo.options import DemoOptions
from tests.faults.demo_harness import demo, exactly_once, seconds_until_more_is_handled
from tests.servers.available import MEASURED, RABBITMQ, OwnPostgresql, need, own_postgresql
from tests.servers.nats import OwnNats, own_nats
from tests.servers.rabbitmq import OwnRabbitMQ, own_rabbitmq

pytestmark = pytest.mark.slow

FLIGHTS, KILLS = 400, 1
ELECTION = """[case ra_leaderboard:lookup_leader(element(1, amqqueue:get_pid(Q))) of
    undefined -> ra:trigger_election(amqqueue:get_pid(Q));
    Leader -> Leader
end || Q <- rabbit_amqqueue:list_by_type(rabbit_quorum_queue)]."""
"""RabbitMQ 3.10, killed, may bring a queue back that has no leader and looks for none; this is what its operator does."""


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[OwnRabbitMQ]:
    """Make a RabbitMQ, and start it."""
    with own_rabbitmq() as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def nats() -> Iterator[OwnNats]:
    """Make a NATS server with JetStream, and start it."""
    with own_nats() as server:
        server.start()
        yield server


@pytest.fixture(scope="module")
def postgresql() -> Iterator[OwnPostgresql]:
    """Make a PostgreSQL, and start it."""
    with own_postgresql() as server:
        server.start()
        yield server


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_every_flight_counts_once_though_rabbitmq_restarts(
    postgresql_url: str, rabbitmq: OwnRabbitMQ, how: signal.Signals
) -> None:
    """Crash here: 1 messages are held and confirms awaited, 2 the broker is gone, 3 all it had confirmed comes again."""

    async def elect() -> None:
        if how is signal.SIGKILL:
            await asyncio.to_thread(rabbitmq.control, "eval", ELECTION)

    async def restart() -> None:
        await asyncio.to_thread(rabbitmq.stop, how)
        await asyncio.to_thread(rabbitmq.start)
        seconds, _ = await asyncio.gather(seconds_until_more_is_handled(postgresql_url), elect())
        MEASURED.append(f"RabbitMQ, {how.name}: first message handled {seconds:.1f} s after the server's return")

    options = DemoOptions(flights=FLIGHTS, kills=KILLS, processes=2, store=postgresql_url, transport=rabbitmq.url)
    exactly_once(await demo(options, restart), options)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_every_flight_counts_once_though_nats_restarts(postgresql_url: str, nats: OwnNats, how: signal.Signals) -> None:
    """Crash here: 1 messages are held and publishes unanswered, 2 the server is gone, 3 what it had stored comes again."""

    async def restart() -> None:
        await asyncio.to_thread(nats.stop, how)
        await asyncio.to_thread(nats.start)
        seconds = await seconds_until_more_is_handled(postgresql_url)
        MEASURED.append(f"NATS, {how.name}: first message handled {seconds:.1f} s after the server's return")

    options = DemoOptions(flights=FLIGHTS, kills=KILLS, processes=2, store=postgresql_url, transport=nats.url)
    exactly_once(await demo(options, restart), options)


@pytest.mark.parametrize("how", ["fast", "immediate"])
async def test_every_flight_counts_once_though_postgresql_restarts(postgresql: OwnPostgresql, how: str) -> None:
    """Crash here: 1 units are open and commits unanswered, 2 the server is gone, 3 what it had committed is pending or done."""

    async def restart() -> None:
        await asyncio.to_thread(postgresql.stop, how)
        await asyncio.to_thread(postgresql.start)
        seconds = await seconds_until_more_is_handled(postgresql.url)
        MEASURED.append(f"PostgreSQL, {how}: first message handled {seconds:.1f} s after the server's return")

    options = DemoOptions(flights=FLIGHTS, kills=KILLS, processes=2, store=postgresql.url, transport=need(RABBITMQ))
    exactly_once(await demo(options, restart), options)
