"""Odd handlers: what cannot succeed becomes one dead letter with a reason, and all other messages are handled."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.adversary.harness import GOOD, Place, cloud_event, opened_place
from tests.adversary.odd_handlers import EITHER, HANDLED_ODDLY, HOSTILE
from tests.adversary.settling import settled
from tests.adversary.wire_cases import DEAD, HANDLED, SETTLED
from tests.servers.available import MEASURED, RABBITMQ, need

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

LATENCIES: dict[str, float] = {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(postgresql_url: str) -> AsyncIterator[Place]:
    """Run two processes of one endpoint for all cases."""
    settings = {"ADVERSARY_TIMEOUT": "2", "ADVERSARY_GRACE": "2"}
    async with opened_place(
        postgresql_url, need(RABBITMQ), program="tests.adversary.odd_handlers:shop", settings=settings
    ) as place:
        await place.start("--processes", "2").ready()
        yield place


async def test_there_are_enough_cases() -> None:
    """Handlers alone."""
    assert len(HOSTILE) + len(HANDLED_ODDLY) >= 40


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_handler_that_cannot_succeed_costs_its_own_message(place: Place, name: str) -> None:
    """Fifty good messages are handled, one is a dead letter, and the worker is ready again."""
    LATENCIES[name] = await _one(place, name, DEAD)


@pytest.mark.parametrize("name", HANDLED_ODDLY)
async def test_a_handler_that_is_odd_and_succeeds_is_handled_once(place: Place, name: str) -> None:
    """With all that it sends."""
    LATENCIES[name] = await _one(place, name, HANDLED)


@pytest.mark.parametrize("name", EITHER)
async def test_a_handler_that_may_be_taken_for_a_failure_is_settled(place: Place, name: str) -> None:
    """Handled once, or a dead letter."""
    LATENCIES[name] = await _one(place, name, SETTLED)


async def _one(place: Place, name: str, expected: str) -> float:
    async def send() -> None:
        await place.queue.send(cloud_event(f"odd {name}", kind="Odd"), json.dumps({"do": name}).encode())

    seconds = await settled(place, send, expected)
    await place.workers[-1].ready()
    return seconds


async def test_at_the_end_nothing_is_lost_or_doubled(place: Place) -> None:
    """All rows and all announcements of all cases agree."""
    await place.audit()
    if LATENCIES:
        slowest = sorted(LATENCIES, key=lambda name: LATENCIES[name])
        median, last = LATENCIES[slowest[len(slowest) // 2]], LATENCIES[slowest[-1]]
        MEASURED.append(
            f"odd handlers: {GOOD} good messages behind each of {len(slowest)}: median {median:.1f} s, slowest {last:.1f} s "
            f"({slowest[-1]})"
        )
