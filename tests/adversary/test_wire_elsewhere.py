"""Hostile messages on the other systems: what every transport can carry, and rows that a foreign program wrote wrongly."""

from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from tests.adversary.harness import Place, SqlQueue, opened_place
from tests.adversary.settling import settled
from tests.adversary.wire_cases import DEAD, ODD_ROWS, SHARED_ON_EVERY_SYSTEM, Shared, shared_cases
from tests.servers.available import NATS, RABBITMQ, REDIS, need

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

CASES = list(shared_cases())[::SHARED_ON_EVERY_SYSTEM]
NUMBERS = count()


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param("MariaDB + RabbitMQ", marks=pytest.mark.repeated),
        "PostgreSQL + Redis",
        "PostgreSQL + NATS",
        "PostgreSQL's queue",
        "MariaDB's queue",
    ],
)
async def place(request: pytest.FixtureRequest, postgresql_url: str, mariadb_url: str) -> AsyncIterator[Place]:
    """Run one worker on each system for all cases."""
    system = str(request.param)
    store = postgresql_url if system.startswith("PostgreSQL") else mariadb_url
    brokers = {"RabbitMQ": (RABBITMQ, ""), "Redis": (REDIS, "/11"), "NATS": (NATS, "")}
    server, path = brokers.get(system.rpartition(" ")[2], (None, ""))
    transport = f"{need(server)}{path}" if server else ""
    async with opened_place(store, transport) as place:
        await place.start().ready()
        yield place


async def test_there_are_enough_cases() -> None:
    """On each system."""
    assert len(CASES) >= 20


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_hostile_message_stops_nothing(place: Place, case: Shared) -> None:
    """It is settled as expected, and fifty good messages behind it are handled."""
    if len(case.body) > place.queue.largest:
        return  # the server refuses it to its sender
    await settled(place, lambda: place.queue.send(case.headers, case.body), case.expected)


@pytest.mark.parametrize("name", ODD_ROWS)
async def test_a_row_with_odd_headers_is_a_dead_letter(place: Place, name: str) -> None:
    """Whatever stands where its headers should be."""
    queue = place.queue
    if not isinstance(queue, SqlQueue):
        return  # a broker has no rows

    body = b"row %d" % next(NUMBERS)  # a dead letter of its own
    await settled(place, lambda: queue.insert([(ODD_ROWS[name], body)]), DEAD)


async def test_at_the_end_nothing_is_lost_or_doubled(place: Place) -> None:
    """All rows and all announcements of all cases agree."""
    await place.audit()
