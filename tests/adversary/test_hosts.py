"""Hosts and networks that misbehave: what was held comes again, nothing is lost, nothing innocent is given up."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.adversary.harness import Place, opened_place
from tests.servers.available import MEASURED, RABBITMQ, need
from tests.servers.debian import faketime_library
from tests.servers.meddling import Meddler, meddling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MESSAGES = 400
MEDDLING: dict[str, Callable[[Meddler], None]] = {
    "cut": Meddler.cut,
    "half-closed": Meddler.half_close,
    "swallowing what the server says": lambda it: it.swallow(up=False, new=False),
    "swallowing what clients say": lambda it: it.swallow(down=False, new=False),
    "swallowing everything": lambda it: it.swallow(new=False),
}


@asynccontextmanager
async def through(url: str, transport: str, what: str) -> AsyncIterator[tuple[Place, Meddler]]:
    """Make a place whose workers reach the database, or the broker, through a meddler; audits do not."""
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(opened_place(url, transport))
        meddler, led = await stack.enter_async_context(meddling(place.store if what == "database" else place.transport))
        place.settings["ADVERSARY_STORE" if what == "database" else "ADVERSARY_TRANSPORT"] = led
        yield place, meddler


async def half_done(place: Place) -> None:
    """Send the messages, and wait until some are handled."""
    await place.good(MESSAGES)

    async def some() -> bool:
        return await place.handled() > 0

    await place.until(some, "the first messages")


async def all_done(place: Place, name: str) -> None:
    """Wait until all messages are handled, once each, and none was given up."""

    async def everything() -> bool:
        return await place.handled() >= MESSAGES

    seconds = await place.until(everything, f"all messages: {name}", patience=180)
    await place.audit(handled=MESSAGES, dead=0)
    MEASURED.append(f"hosts: {name}: the rest of {MESSAGES} messages after {seconds:.1f} s")


@pytest.mark.parametrize("what", ["database", "broker"])
@pytest.mark.parametrize("how", MEDDLING)
async def test_connections_that_misbehave_cost_no_message(postgresql_url: str, what: str, how: str) -> None:
    """The connections that are open; new ones work."""
    async with through(postgresql_url, need(RABBITMQ), what) as (place, meddler):
        await place.start("--processes", "2").ready()
        await half_done(place)
        MEDDLING[how](meddler)
        await place.good(0)
        await all_done(place, f"connections to the {what}: {how}")


@pytest.mark.parametrize("what", ["database", "broker"])
async def test_a_slow_network_costs_no_message(postgresql_url: str, what: str) -> None:
    """Everything that the workers say is 50 ms late."""
    async with through(postgresql_url, need(RABBITMQ), what) as (place, meddler):
        await place.start("--processes", "2").ready()
        await half_done(place)
        meddler.delay = 0.05
        await all_done(place, f"every request to the {what} 50 ms late")


async def test_a_server_that_resets_connections_for_a_while_costs_no_message(postgresql_url: str) -> None:
    """As a load balancer without a backend does."""
    async with through(postgresql_url, need(RABBITMQ), "database") as (place, meddler):
        await place.start("--processes", "2").ready()
        await half_done(place)
        meddler.refuses = True
        meddler.cut()
        await asyncio.sleep(3)
        meddler.refuses = False
        await all_done(place, "a database that resets connections for 3 s")


async def test_a_host_that_vanishes_costs_no_message(postgresql_url: str) -> None:
    """All processes are killed at once, and others take over."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        lost = place.start("--processes", "2")
        await lost.ready()
        await half_done(place)
        lost.end()
        place.start("--processes", "2")
        await all_done(place, "a host that is killed")


async def test_a_host_that_stands_still_costs_no_message(postgresql_url: str) -> None:
    """All processes are stopped, others take over, and those that wake up do no harm."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        still = place.start("--processes", "2")
        await still.ready()
        await half_done(place)
        os.killpg(still.process.pid, signal.SIGSTOP)
        other = place.start("--processes", "2")
        await other.ready()
        await asyncio.sleep(5)
        os.killpg(still.process.pid, signal.SIGCONT)
        await all_done(place, "a host that stands still for 5 s")


@pytest.mark.parametrize("queue", ["RabbitMQ", "PostgreSQL's queue"])
@pytest.mark.parametrize("shift", ["-10m", "+10m", "+400d"])
async def test_a_host_whose_clock_is_wrong_costs_no_message(postgresql_url: str, queue: str, shift: str) -> None:
    """It works beside one whose clock is right, and neither hides messages from the other."""
    library = await asyncio.to_thread(faketime_library)
    async with opened_place(postgresql_url, need(RABBITMQ) if queue == "RabbitMQ" else "") as place:
        environment = {
            "LD_PRELOAD": library,
            "FAKETIME": shift,
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        wrong = place.start(environment=environment)
        await place.start().ready()
        await half_done(place)
        wrong.end()  # what it held comes again
        await all_done(place, f"a clock that is wrong by {shift}, {queue}")
