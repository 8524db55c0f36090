"""Fault runs: messages of a foreign producer, and something that goes wrong all the time. Everything must come out as zeros."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.adversary.fault_runs import Plan, Progress, fault_run, growth
from tests.adversary.harness import Place, opened_place
from tests.servers.available import MEASURED, RABBITMQ, need
from tests.servers.meddling import meddling
from tests.servers.rabbitmq import own_rabbitmq

SHORT_TIMEOUT = "application:set_env(rabbit, consumer_timeout, 1500), application:set_env(rabbit, channel_tick_interval, 300)."
"""RabbitMQ ends a channel whose consumer holds a message for longer than that."""


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_kills_on_postgresql_and_rabbitmq(postgresql_url: str) -> None:
    """A process is killed every second, at whatever it does."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        progress = await fault_run(place, Plan(messages=2_000, kill_every=1.0), name="kills")
        assert progress.kills > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_a_hundred_thousand_messages_with_a_kill_every_second(postgresql_url: str) -> None:
    """The same for long."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        progress = await fault_run(place, Plan(messages=100_000, processes=5, kill_every=1.0), name="100,000 with kills")
        assert progress.kills > 50


@pytest.mark.soak
@pytest.mark.timeout(7200)
async def test_memory_stays_flat_over_a_hundred_thousand_messages(postgresql_url: str) -> None:
    """Each process has at most a tenth more than after a fifth of the run."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        progress = await fault_run(place, Plan(messages=100_000, processes=2), name="100,000 without kills")
        worst = growth(progress)
        MEASURED.append(f"memory of a process after 20 % of 100,000 messages: at most {worst:.3f} times that later")
        assert worst <= 1.1


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_serializable_isolation(postgresql_url: str) -> None:
    """Units lose races all the time, and no message is given up for it."""
    async with opened_place(postgresql_url, need(RABBITMQ), settings={"ADVERSARY_ISOLATION": "SERIALIZABLE"}) as place:
        await fault_run(place, Plan(messages=1_000, kill_every=3.0, hot=5), name="SERIALIZABLE, hot rows")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_deadlocks_on_hot_rows(postgresql_url: str) -> None:
    """Each message changes two of five rows, in an order of its own."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        await fault_run(place, Plan(messages=1_000, kill_every=3.0, hot=5), name="deadlocks on hot rows")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_rabbitmq_ends_channels_whose_messages_take_too_long(postgresql_url: str) -> None:
    """Handlers that take longer than the server's consumer time-out are handled once, and so are those beside them."""
    with own_rabbitmq() as server:
        await asyncio.to_thread(server.start)
        await asyncio.to_thread(server.control, "eval", SHORT_TIMEOUT)
        async with opened_place(postgresql_url, server.url) as place:
            await fault_run(place, Plan(messages=500, processes=2, slow=3.0), name="consumer time-out of RabbitMQ")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_rabbitmq_swallows_for_a_while(postgresql_url: str) -> None:
    """Four times everything that workers and RabbitMQ say to each other is lost for some seconds, on every connection.

    A connection that lost something stays silent, because TCP delivers nothing after a gap. With a gap of whole publishes,
    RabbitMQ would count later ones as these, and confirm messages that it never got.
    """
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(opened_place(postgresql_url, need(RABBITMQ)))
        meddler, through = await stack.enter_async_context(meddling(place.transport))
        place.settings["ADVERSARY_TRANSPORT"] = f"{through}&timeout=5"

        async def swallow(_place: Place, progress: Progress) -> None:
            for share in (0.1, 0.3, 0.5, 0.7):
                await progress.until(share)
                meddler.swallow()
                try:
                    await asyncio.sleep(4)
                finally:  # the run cancels this when all is handled, and that may be now
                    meddler.pass_on(after_gaps=False)

        await fault_run(place, Plan(messages=2_000, processes=2), swallow, name="a RabbitMQ that swallows")
