"""Processes are killed while they handle orders that each come twice in a row: a receiver gets few events twice, and all."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from benchmarks.copies.running import Plan, measure
from onceonly.runtime.worker.batched_delete import FEW
from tests.servers.available import MEASURED, NATS, RABBITMQ, Server, need, postgresql_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ORDERS, KILLS = 120, 4


@pytest.fixture
def store() -> Iterator[str]:
    """Return a database."""
    with postgresql_database() as url:
        yield url


def plan(way: str, store: str, broker: Server, *, kills: int, rate: float = 0.0, control: bool = False) -> Plan:
    """Return what to measure. The queues have a prefix of their own."""
    transport = f"{need(broker)}?prefix=copies-{uuid4().hex[:8]}-"
    return Plan(
        way=way,
        store=store,
        transport=transport,
        orders=ORDERS,
        kills=kills,
        rate=rate,
        processes=1 if kills else 2,
        control=control,
    )


async def test_a_killed_sender_repeats_few_events(store: str) -> None:
    """Crash here: 1 sent, 2 not deleted, 3 a relay sends these few again. A control run may repeat a hundred for each kill."""
    measured = await measure(plan("sending", store, RABBITMQ, kills=KILLS))
    MEASURED.append(f"sending(), PostgreSQL and RabbitMQ: {measured}")
    assert measured.distinct == ORDERS
    assert measured.repeated <= FEW * KILLS


@pytest.mark.parametrize("broker", [RABBITMQ, NATS], ids=lambda server: server.name)
async def test_no_event_of_a_killed_worker_is_lost(broker: Server, store: str) -> None:
    """How many are repeated depends on the size of the batch that is killed, so it is only shown."""
    measured = await measure(plan("worker", store, broker, kills=KILLS, rate=20))
    MEASURED.append(f"worker, PostgreSQL and {broker.name}: {measured}")
    assert measured.distinct == ORDERS


async def test_copies_that_two_processes_get_are_all_handled_once(store: str) -> None:
    """Without a kill. A wait ends after two seconds, which a busy machine may need, so the number is only shown."""
    measured = await measure(plan("worker", store, RABBITMQ, kills=0, rate=50))
    MEASURED.append(f"two workers, PostgreSQL and RabbitMQ: {measured}")
    assert measured.distinct == ORDERS
