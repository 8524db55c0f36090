"""Hostile messages on the wire: each is handled once or becomes a dead letter, and the messages behind it are handled.

Every case runs against the same worker: it would still be down, if a case before had stopped it.
"""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.adversary.harness import GOOD, Place, RabbitQueue, opened_place
from tests.adversary.raw_amqp import Refused
from tests.adversary.settling import settled
from tests.adversary.wire_cases import Case, amqp_cases
from tests.servers.available import MEASURED, RABBITMQ, need

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CASES = list(amqp_cases())
LATENCIES: list[float] = []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(postgresql_url: str) -> AsyncIterator[Place]:
    """Run one worker on PostgreSQL and RabbitMQ for all cases."""
    async with opened_place(postgresql_url, need(RABBITMQ)) as place:
        await place.start().ready()
        yield place


async def test_there_are_enough_cases() -> None:
    """Each has a name of its own."""
    assert len({case.name for case in CASES}) == len(CASES) >= 120


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_hostile_message_stops_nothing(place: Place, case: Case) -> None:
    """It is settled as expected, and fifty good messages behind it are handled."""

    async def send() -> None:
        queue = place.queue
        assert isinstance(queue, RabbitQueue)
        try:
            await queue.raw.publish(queue.name, case.body, case.raw)
        except Refused as error:
            await queue.reconnect_raw()
            if await queue.waiting():  # the server took the message before it closed the connection
                return
            pytest.skip(f"the server does not take it: {error}")

    LATENCIES.append(await settled(place, send, case.expected))


async def test_at_the_end_nothing_is_lost_or_doubled(place: Place) -> None:
    """All rows and all announcements of all cases agree, and the worker is ready."""
    await place.audit()
    assert place.workers[-1].health("ready") == 200
    assert place.workers[-1].health("live") == 200
    if LATENCIES:
        slowest = sorted(LATENCIES)
        MEASURED.append(
            f"wire, PostgreSQL + RabbitMQ: {GOOD} good messages behind each of {len(slowest)} hostile ones: median "
            f"{slowest[len(slowest) // 2]:.2f} s, slowest {slowest[-1]:.2f} s ({time.strftime('%H:%M')})"
        )
