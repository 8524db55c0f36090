"""Azure Functions on the local host under kills and freezes: nothing is lost or doubled; without onceonly something is."""

import asyncio
from uuid import uuid4

import pytest

from examples.hosts.functions_host import MAX_DELIVERY_COUNT, MAX_DEQUEUE_COUNT, Cloud, FunctionsHost, LeasingQueue, Partition
from examples.hosts.functions_run import run
from examples.hosts.harness import Places
from onceonly.adapters.cosmos.documents import create
from tests.hosts.test_hosts import note
from tests.servers.available import POSTGRESQL, RABBITMQ, need


@pytest.fixture
def places() -> Places:
    """Skip without the servers."""
    return Places(need(POSTGRESQL), need(RABBITMQ))


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_orders_and_ticks_take_effect_once_when_hosts_are_killed_and_frozen(places: Places) -> None:
    """A fifth of the orders came twice, and ticks ran twice."""
    counts = await run(places, is_control=False, ids=60, kills=10)
    note("azure_functions", counts)
    assert counts.is_exact, counts


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_same_functions_without_onceonly_double(places: Places) -> None:
    """So the run above can fail. The output binding is sent once more with each delivery."""
    counts = await run(places, is_control=True, ids=30, kills=4)
    note("azure_functions", counts)
    assert counts.rows_doubled
    assert counts.by_id_doubled


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_deposits_on_cosmos_db_are_paid_in_once(cosmos_account: str) -> None:
    """From a Storage queue and from an event hub, with copies. Workers and hosts are killed while they pay in."""
    store = f"{cosmos_account}/onceonly/t{uuid4().hex[:12]}?emulator=true"
    await create(store)
    cloud = Cloud()
    queue = cloud.storage["from_queue"] = LeasingQueue(100)
    hub = cloud.partitions["from_hub"] = Partition()
    for number in range(10):
        for send in (queue.send, hub.send):
            for _ in range(2 if number % 5 == 0 else 1):
                send({"order_id": f"{number} {send.__self__.__class__.__name__}", "account_id": "a", "amount": 1})
    for number in range(3):
        host = FunctionsHost(cloud, "tests.hosts.azure_bank", {"BANK_STORE": store})
        await host.start()
        for _ in range(3):
            await host.report()
        if number % 2:
            await host.kill_worker()
            await host.report()
        await host.kill()
    last = FunctionsHost(cloud, "tests.hosts.azure_bank", {"BANK_STORE": store})
    await last.start()
    try:
        while cloud.waiting:  # noqa: ASYNC110 - the services tell nobody
            await asyncio.sleep(0.05)
        assert not queue.dead
        queue.send({"order_id": "the last", "account_id": "a", "amount": 0})
        while cloud.waiting:  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.05)
        assert last.reports()[-1] == "sum 20"
    finally:
        await last.stop()


def test_the_services_give_a_message_up_as_azure_does() -> None:
    """After ten deliveries, and after five."""
    for most in (MAX_DELIVERY_COUNT, MAX_DEQUEUE_COUNT):
        queue = LeasingQueue(most)
        queue.send({})
        for number in range(most):
            (leased,) = queue.receive()
            assert leased.deliveries == number + 1
            assert not queue.receive()
            queue.abandon([leased])
        assert not queue.receive()
        assert len(queue.dead) == 1
