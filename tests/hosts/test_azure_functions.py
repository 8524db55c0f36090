"""Azure Functions on the local host under kills and freezes: nothing is lost or doubled; without onceonly something is."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from examples.hosts.functions_host import (
    EPOCH,
    LOCK_SECONDS,
    MAX_DELIVERY_COUNT,
    MAX_DEQUEUE_COUNT,
    SESSION,
    TOO_MANY_DELIVERIES,
    Cloud,
    FunctionsHost,
    LeasingQueue,
    Partition,
    TimerStatus,
)
from examples.hosts.functions_run import (
    MANY_DELIVERIES,
    FunctionsCounts,
    Stage,
    new_prefix,
    play,
    postgresql_stage,
    run,
    run_requests,
)
from examples.hosts.harness import Places
from examples.hosts.rabbitmq import RabbitMQWire
from onceonly.assembly.documents import create, open_documents
from onceonly.documents.store import ENTITY
from onceonly.runtime.environment import LIVE
from tests.hosts.azure_orders_control import container_of
from tests.hosts.test_hosts import note
from tests.servers.available import MEASURED, POSTGRESQL, RABBITMQ, need

KILLS = 10


@pytest.fixture
def places() -> Places:
    """Skip without the servers."""
    return Places(need(POSTGRESQL), need(RABBITMQ))


def note_run(name: str, counts: FunctionsCounts) -> None:
    """Print the numbers of a run at the end of the session."""
    note(name, counts.counts)
    MEASURED.append(
        f"{name}: {len(counts.dead)} dead letters of Service Bus, {counts.dead_without_row} of them without a row; "
        f"{counts.ticks} ticks ran {counts.runs_of_ticks} times; {counts.sent_by_maintenance} events were sent at the end"
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_orders_and_ticks_take_effect_once_when_hosts_are_killed_and_frozen(places: Places) -> None:
    """A fifth of the orders came twice."""
    counts = await run(places, is_control=False, ids=60, kills=KILLS)
    note_run("azure_functions", counts)
    assert counts.counts.is_exact, counts
    assert not counts.dead


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.repeated
async def test_an_order_that_service_bus_gives_up_is_a_dead_letter_or_is_done(places: Places) -> None:
    """With the default `maxDeliveryCount`, ten hosts that die use up the deliveries of an order that each of them had.

    It is in the dead-letter queue with a reason. If it was committed, its event is sent by the timer of `maintenance`.
    """
    counts = await run(places, is_control=False, ids=60, kills=KILLS, most_deliveries=MAX_DELIVERY_COUNT)
    note_run("azure_functions, 10 deliveries", counts)
    assert counts.counts.is_exact, counts
    assert set(counts.dead.values()) <= {TOO_MANY_DELIVERIES}


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.timeout(400)
async def test_the_same_functions_without_onceonly_double(places: Places) -> None:
    """So the runs above can fail. The output binding is sent once more with each delivery."""
    counts = await run(places, is_control=True, ids=60, kills=KILLS)
    note_run("azure_functions", counts)
    assert not counts.counts.rows_lost
    assert counts.counts.rows_doubled
    assert counts.counts.by_id_doubled


# Requests


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.repeated
async def test_requests_take_effect_once_when_hosts_are_killed(places: Places) -> None:
    """Clients repeat them with the same key, and get the same response each time."""
    counts = await run_requests(places, is_control=False, ids=60, kills=KILLS)
    note("azure_functions, requests", counts.counts)
    assert counts.counts.is_exact, counts
    assert not counts.changed
    assert counts.requests > 2 * 60, "no request was cut off"


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_the_same_requests_without_onceonly_double(places: Places) -> None:
    """Each repetition is another row, and another response."""
    counts = await run_requests(places, is_control=True, ids=30, kills=4)
    note("azure_functions, requests", counts.counts)
    assert counts.counts.rows_doubled
    assert counts.changed


# Documents


async def entities(store: str) -> Counter[str]:
    """Return how often each order and tick was counted."""
    async with open_documents(store, clock=LIVE.clock) as documents:
        keys = await documents.keys(ENTITY)
        found = [json.loads(each.body)["state"] for each in (await documents.load(keys)).values()]
    return Counter({each["id"]: each["times"] for each in found if each})


async def items(store: str) -> Counter[str]:
    """Return the same of the control program."""
    async with container_of(store) as container:
        return Counter({item["name"]: item["times"] async for item in container.read_all_items()})


@asynccontextmanager
async def cosmos_stage(account: str, prefix: str, *, is_control: bool) -> AsyncIterator[Stage]:
    """Make a container for a program."""
    store = f"{account}/onceonly/t{uuid4().hex[:12]}?emulator=true"
    await create(store)
    environment = {"HOSTS_STORE": store, "HOSTS_BROKER": need(RABBITMQ), "HOSTS_PREFIX": prefix}

    async def rows() -> Counter[str]:
        return await (items if is_control else entities)(store)

    yield Stage(f"tests.hosts.azure_orders_{'control' if is_control else 'once'}", environment, rows)


async def on_cosmos(account: str, *, is_control: bool, ids: int, kills: int) -> FunctionsCounts:
    """Run a program on Cosmos DB's emulator."""
    prefix = new_prefix()
    async with cosmos_stage(account, prefix, is_control=is_control) as stage:
        wire = RabbitMQWire(need(RABBITMQ), prefix)
        counts = await play(stage, wire, is_control=is_control, ids=ids, kills=kills, most_deliveries=MANY_DELIVERIES)
    note_run("azure_functions, Cosmos DB", counts)
    return counts


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.repeated
async def test_orders_on_cosmos_db_take_effect_once_when_hosts_are_killed_and_frozen(cosmos_account: str) -> None:
    """Each order is an entity. The timer of `maintenance` sends what a dead host had committed."""
    counts = await on_cosmos(cosmos_account, is_control=False, ids=60, kills=KILLS)
    assert counts.counts.is_exact, counts
    assert not counts.dead


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.repeated
async def test_the_same_on_cosmos_db_without_onceonly_doubles(cosmos_account: str) -> None:
    """So the run above can fail."""
    counts = await on_cosmos(cosmos_account, is_control=True, ids=60, kills=KILLS)
    assert counts.counts.rows_doubled
    assert counts.counts.by_id_doubled


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.repeated
async def test_deposits_on_cosmos_db_are_paid_in_once(cosmos_account: str) -> None:
    """From a Storage queue and from an event hub, with copies. Workers and hosts are killed while they pay in."""
    store = f"{cosmos_account}/onceonly/t{uuid4().hex[:12]}?emulator=true"
    await create(store)
    cloud = Cloud()
    queue = cloud.storage["from_queue"] = LeasingQueue(100, reason="")
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


# A freeze


async def frozen_at(place: str, function: str, environment: Mapping[str, str], gate: Path) -> None:
    """Freeze a host while its worker is at a gate, have another one handle the message, and thaw it.

    Returns when the first host has settled the message, whose lock it had lost.
    """
    cloud = Cloud()
    queue = cloud.service_bus[function] = LeasingQueue(MAX_DELIVERY_COUNT)
    queue.send({"order_id": "order"})
    first = FunctionsHost(cloud, "tests.hosts.azure_frozen", {**environment, "HOSTS_GATE": f"{place}:{gate}"}, concurrency=1)
    other = FunctionsHost(cloud, "tests.hosts.azure_frozen", environment, concurrency=1)
    try:
        await first.start()
        while await first.report() != f"{place} order":
            pass
        first.freeze()
        await other.start()
        settled = await other.settled.get()
        while not (settled.is_completed and settled.held):
            settled = await other.settled.get()
        assert not cloud.waiting
        await asyncio.to_thread(gate.touch)
        first.thaw()
        last = await first.settled.get()
        assert not last.held
    finally:
        first.thaw()
        await first.kill()
        await other.kill()


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["body", pytest.param("handler", marks=pytest.mark.repeated)])
async def test_a_host_that_thaws_after_another_one_handled_its_message_changes_nothing(
    place: str, places: Places, tmp_path: Path
) -> None:
    """The other one got the message when its lock had expired. There is one row and one event."""
    prefix = new_prefix()
    wire = RabbitMQWire(places.broker, prefix)
    await wire.prepare()
    async with postgresql_stage(places, prefix, is_control=False) as stage:
        try:
            await frozen_at(place, "place_order", stage.environment, tmp_path / "gate")
            assert await stage.rows() == {"order": 1}
            assert len({event.id for event in await wire.events()}) == 1
        finally:
            await wire.clean()


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("place", ["body", "handler"])
async def test_a_host_that_thaws_changes_nothing_on_documents(place: str, redis_url: str, tmp_path: Path) -> None:
    """Its commit comes too late, because the document has changed."""
    prefix = new_prefix()
    wire = RabbitMQWire(need(RABBITMQ), prefix)
    await wire.prepare()
    try:
        environment = {"HOSTS_STORE": redis_url, "HOSTS_BROKER": need(RABBITMQ), "HOSTS_PREFIX": prefix}
        await frozen_at(place, "place_order", environment, tmp_path / "gate")
        assert await entities(redis_url) == {"order": 1}
        assert len({event.id for event in await wire.events()}) == 1
    finally:
        await wire.clean()


@pytest.mark.slow
@pytest.mark.timeout(200)
async def test_without_onceonly_a_host_that_thaws_doubles(places: Places, tmp_path: Path) -> None:
    """So the tests above can fail."""
    async with postgresql_stage(places, new_prefix(), is_control=False) as stage:
        await frozen_at("handler", "place_plainly", stage.environment, tmp_path / "gate")
        assert await stage.rows() == {"order": 2}


# The model itself


def test_the_services_give_a_message_up_as_azure_does() -> None:
    """After ten deliveries, with a reason, and after five into a poison queue, which keeps none."""
    for most, reason in ((MAX_DELIVERY_COUNT, TOO_MANY_DELIVERIES), (MAX_DEQUEUE_COUNT, "")):
        queue = LeasingQueue(most, reason=reason)
        queue.send({})
        for number in range(most):
            (leased,) = queue.receive()
            assert leased.deliveries == number + 1
            assert not queue.receive()
            queue.abandon([leased])
        assert not queue.receive()
        assert [each.reason for each in queue.dead] == [reason]


def test_a_session_is_delivered_in_order() -> None:
    """Its next message comes after the first one is completed. Other sessions do not wait for it."""
    queue = LeasingQueue(MAX_DELIVERY_COUNT)
    for id_, session in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        queue.send({}, id_=id_, **{SESSION: session})
    first, second = queue.receive(10)
    assert [first.id, second.id] == ["a1", "b1"]
    assert not queue.receive(10)
    queue.abandon([first])
    (again,) = queue.receive(10)
    assert (again.id, again.deliveries) == ("a1", 2)
    queue.complete([again])
    assert [each.id for each in queue.receive(10)] == ["a2"]


def test_one_host_runs_a_timer() -> None:
    """Another one takes over after the lease has ended."""
    timer, first, other = TimerStatus(wanted=1), object(), object()
    assert timer.is_held_by(first)
    assert not timer.is_held_by(other)
    timer.until = 0.0
    assert timer.is_held_by(other)
    assert not timer.is_held_by(first)


@pytest.mark.timeout(60)
async def test_a_tick_that_two_hosts_run_does_not_skip_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen host loses its lease. After it has thawed it writes the status of its own run, not one tick more."""
    timer = TimerStatus(wanted=1)
    cloud, planned = Cloud(timers={"tick": timer}), list[str]()
    began, gates = asyncio.Queue[None](), {name: asyncio.Event() for name in ("first", "other")}

    def host(name: str) -> FunctionsHost:
        made = FunctionsHost(cloud, "", {})

        async def invoke(_function: str, data: Mapping[str, str], _metadata: object) -> None:
            planned.append(json.loads(data["value"])["ScheduleStatus"]["Next"])
            began.put_nowait(None)
            await gates[name].wait()

        monkeypatch.setattr(made, "invoke", invoke)
        monkeypatch.setattr(made, "_start_worker", lambda: asyncio.sleep(0))
        return made

    first, other = host("first"), host("other")
    await first.start()
    await began.get()
    first.freeze()
    timer.until = 0.0  # as after a second without renewal
    await other.start()
    await began.get()
    first.thaw()
    for each in gates.values():
        each.set()
    while timer.due:  # noqa: ASYNC110 - hosts report nothing
        await asyncio.sleep(LOCK_SECONDS / 100)
    timer.wanted = 2
    while timer.due:  # noqa: ASYNC110 - the same
        await asyncio.sleep(LOCK_SECONDS / 100)
    await first.stop()
    await other.stop()
    assert planned[:2] == [EPOCH.isoformat()] * 2
    assert planned[2] == "2024-01-01T00:01:00+00:00"
    assert timer.began == {0, 1}
