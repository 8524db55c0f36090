"""Runs a program of the example on the local Functions host, with kills and freezes, and counts what came of it.

Service Bus, the clients of the HTTP function, and the stored schedules of the timers are in this process. What onceonly sends
goes to RabbitMQ. A fifth of the orders is sent twice.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import select

from examples.hosts.functions_host import (
    EPOCH,
    MAX_DELIVERY_COUNT,
    SERVER_ERROR,
    ClientRequest,
    ClientResponse,
    Cloud,
    FunctionsHost,
    LeasingQueue,
    TimerStatus,
    WorkerDied,
)
from examples.hosts.harness import Counts, Places, WireEvent, created_tables, opened_database, with_copies
from examples.hosts.program import Order
from examples.hosts.rabbitmq import RabbitMQWire

PACKAGE = "examples.hosts.azure_functions"
MAINTENANCE = "onceonly_shop"
"""The name of the timer of `maintenance`."""
SETTLING_SECONDS, GLANCE_SECONDS, FROZEN_SECONDS, LONGEST_MOMENT = 120.0, 0.1, 1.3, 0.03
MINUTE_SECONDS = 1.0
"""How often the timer of maintenance is due, while the last host works."""
LIFE_SECONDS = 8.0
"""How long a host may take to report the orders at which it is killed."""
MANY_DELIVERIES = 100
"""A `maxDeliveryCount` that no message reaches here."""
CONFLICT = 409


class Stage(NamedTuple):
    """A program, what it reads from its environment, and how the times are counted that each order took effect."""

    module: str
    environment: Mapping[str, str]
    rows: Callable[[], Awaitable[Counter[str]]]


class FunctionsCounts(NamedTuple):
    """What a run left. An order without a row that is a dead letter of Service Bus is not lost: it has a reason there."""

    counts: Counts
    dead: Mapping[str, str]
    """The reason of each order that is a dead letter of Service Bus."""
    dead_without_row: int
    ticks: int
    runs_of_ticks: int
    sent_by_maintenance: int
    """Events that were sent after all messages were settled."""


@asynccontextmanager
async def postgresql_stage(places: Places, prefix: str, *, is_control: bool) -> AsyncIterator[Stage]:
    """Make a database for a program of this package, and its tables."""
    module = f"{PACKAGE}.{'control' if is_control else 'exactly_once'}"
    async with opened_database(places.postgresql) as engine:
        store = engine.url.render_as_string(hide_password=False)
        environment = {"HOSTS_STORE": store, "HOSTS_BROKER": places.broker, "HOSTS_PREFIX": prefix}
        if not is_control:
            await created_tables(f"{module}:shop", environment)

        async def rows() -> Counter[str]:
            async with engine.connect() as connection:
                return Counter((await connection.execute(select(Order.order_id))).scalars())

        yield Stage(module, environment, rows)


def new_prefix() -> str:
    """Return what the names of a run begin with."""
    return f"hosts-{uuid4().hex[:8]}-"


async def run(
    places: Places, *, is_control: bool, ids: int = 100, kills: int = 10, seed: int = 1, most_deliveries: int = MANY_DELIVERIES
) -> FunctionsCounts:
    """Run one program on PostgreSQL."""
    prefix = new_prefix()
    async with postgresql_stage(places, prefix, is_control=is_control) as stage:
        wire = RabbitMQWire(places.broker, prefix)
        return await play(stage, wire, is_control=is_control, ids=ids, kills=kills, seed=seed, most_deliveries=most_deliveries)


async def play(  # noqa: PLR0913 - the options of a run
    stage: Stage,
    wire: RabbitMQWire,
    *,
    is_control: bool,
    ids: int = 100,
    kills: int = 10,
    seed: int = 1,
    most_deliveries: int = MAX_DELIVERY_COUNT,
) -> FunctionsCounts:
    """Run one program, which is killed and frozen in turn. Returns the numbers; ticks count as orders without an event."""
    since, rng = time.monotonic(), random.Random(seed)  # noqa: S311 - when a process dies is no secret
    wanted = [f"order-{number}" for number in range(ids)]
    cloud = Cloud()
    queue = cloud.service_bus["place_order"] = LeasingQueue(most_deliveries)
    timer = cloud.timers["count_orders"] = TimerStatus()
    if not is_control:
        cloud.timers[MAINTENANCE] = TimerStatus()
    await wire.prepare()
    try:
        sent = with_copies(wanted)
        for number in range(kills):
            for each in cloud.timers.values():
                each.wanted += 1
            for each in sent[len(sent) * number // kills : len(sent) * (number + 1) // kills]:
                queue.send({"order_id": each})
            await _work_and_die(cloud, stage, rng, number)
        host = FunctionsHost(cloud, stage.module, stage.environment)
        await host.start()
        try:
            settled = await _settle(cloud, stage, wire, is_control=is_control)
        finally:
            await host.stop()
        rows, events = await stage.rows(), list(await wire.events())
    finally:
        await wire.clean()
    events += [WireEvent("", json.loads(each)["order_id"]) for each in cloud.sent]
    ticks = [f"tick {(EPOCH + timedelta(minutes=number)).isoformat()}" for number in sorted(timer.began)]
    dead = {json.loads(each.body)["order_id"]: each.reason for each in queue.dead}
    counted = _counted("control" if is_control else "exactly once", kills, [*wanted, *ticks], rows, events, dead, since)
    without_row = sum(not rows[each] for each in dead)
    return FunctionsCounts(counted, dead, without_row, len(ticks), timer.runs, max(0, len(events) - settled))


async def _settle(cloud: Cloud, stage: Stage, wire: RabbitMQWire, *, is_control: bool) -> int:
    """Let the last host work until no message waits, and each order with a row has its event.

    Returns how many events there were when no message waited any more.
    """
    until, settled = time.monotonic() + SETTLING_SECONDS, -1
    while time.monotonic() < until:
        events = await wire.events()
        if not cloud.messages_waiting:
            if settled < 0:
                settled = len(events)
            rows = await stage.rows()
            orders = {each for each in rows if each.startswith("order")}
            if not cloud.waiting and (is_control or orders <= {event.order_id for event in events}):
                break
        maintenance = cloud.timers.get(MAINTENANCE)
        if maintenance is not None and not maintenance.due:
            await asyncio.sleep(MINUTE_SECONDS)
            maintenance.wanted += 1
        await asyncio.sleep(GLANCE_SECONDS)
    return settled


async def _work_and_die(cloud: Cloud, stage: Stage, rng: random.Random, number: int) -> None:
    """Run a host until it has some of its messages in work. It is killed then, or its worker, or it is frozen before."""
    host = FunctionsHost(cloud, stage.module, stage.environment)
    await host.start()
    with suppress(TimeoutError):
        async with asyncio.timeout(LIFE_SECONDS):
            for _ in range(rng.randint(2, 6)):
                await host.report()
    await asyncio.sleep(rng.uniform(0, LONGEST_MOMENT))
    if number % 3 == 1:
        await host.kill_worker()
    elif number % 3 == 2:  # noqa: PLR2004 - the third way
        host.freeze()
        other = FunctionsHost(cloud, stage.module, stage.environment)
        await other.start()
        await asyncio.sleep(FROZEN_SECONDS)  # the locks of the frozen one end
        host.thaw()
        with suppress(TimeoutError):
            async with asyncio.timeout(LIFE_SECONDS):
                await other.report()
        await other.kill()
    await host.kill()


def _counted(  # noqa: PLR0913, PLR0917 - what is counted
    program: str,
    kills: int,
    ids: Sequence[str],
    rows: Counter[str],
    events: Sequence[WireEvent],
    dead: Mapping[str, str],
    since: float,
) -> Counts:
    published = Counter(event.order_id for event in events)
    taken = Counter(order_id for _, order_id in {(event.id or uuid4().hex, event.order_id) for event in events})
    is_excused = {each for each, reason in dead.items() if reason and not rows[each]}
    return Counts(
        program=program,
        kills=kills,
        ids=len(ids),
        rows=rows.total(),
        rows_lost=sum(not rows[each] and each not in is_excused for each in ids),
        rows_doubled=sum(count > 1 for count in rows.values()),
        events=len(events),
        events_lost=sum(not published[each] and each not in is_excused for each in ids if each.startswith("order")),
        repeated=len(events) - len(published),
        by_id_doubled=sum(count > 1 for count in taken.values()),
        seconds=round(time.monotonic() - since, 1),
    )


# Requests


@dataclass
class Clients:
    """Clients that post orders, each with a key. Each repeats its request until it has a response, and once more afterwards."""

    at_once: int = 8
    host: FunctionsHost | None = None
    responses: dict[str, list[ClientResponse]] = field(default_factory=dict)
    requests: int = 0
    is_there: asyncio.Event = field(default_factory=asyncio.Event)

    async def post(self, order_ids: Sequence[str]) -> None:
        """Post these orders. Returns after all responses have come."""
        free = asyncio.Semaphore(self.at_once)

        async def one(order_id: str) -> None:
            async with free:
                for _ in range(2):
                    self.responses.setdefault(order_id, []).append(await self._answered(order_id))

        await asyncio.gather(*(one(each) for each in order_ids))

    async def _answered(self, order_id: str) -> ClientResponse:
        headers = {"Idempotency-Key": f'"{order_id}"', "Content-Type": "application/json"}
        body = json.dumps({"order_id": order_id}).encode()
        while True:
            await self.is_there.wait()
            if self.host is not None:
                self.requests += 1
                with suppress(WorkerDied):
                    request = ClientRequest("POST", "https://shop.example/api/orders", headers, body)
                    response = await self.host.request("accept_order", request)
                    if response.status < SERVER_ERROR and response.status != CONFLICT:
                        return response
            await asyncio.sleep(GLANCE_SECONDS)

    @property
    def changed(self) -> int:
        """Count the orders whose responses differ."""
        return sum(len({(each.status, each.body) for each in found}) > 1 for found in self.responses.values())


class RequestCounts(NamedTuple):
    """What a run of requests left. `changed` counts keys whose responses differ, `requests` those that were sent."""

    counts: Counts
    requests: int
    changed: int


async def run_requests(places: Places, *, is_control: bool, ids: int = 100, kills: int = 10, seed: int = 1) -> RequestCounts:
    """Have clients post orders to one program on PostgreSQL, whose hosts are killed."""
    since, rng, prefix = time.monotonic(), random.Random(seed), new_prefix()  # noqa: S311 - as above
    wire, clients, wanted = RabbitMQWire(places.broker, prefix), Clients(), [f"order-{number}" for number in range(ids)]
    async with postgresql_stage(places, prefix, is_control=is_control) as stage:
        cloud = Cloud()
        if not is_control:
            cloud.timers[MAINTENANCE] = TimerStatus()
        await wire.prepare()
        try:
            for number in range(kills):
                posting = asyncio.create_task(clients.post(wanted[ids * number // kills : ids * (number + 1) // kills]))
                clients.host = host = FunctionsHost(cloud, stage.module, stage.environment)
                await host.start()
                clients.is_there.set()
                for _ in range(rng.randint(1, max(1, ids // kills // 2))):
                    await host.report()
                await asyncio.sleep(rng.uniform(0, LONGEST_MOMENT))
                clients.is_there.clear()
                await host.kill()
                clients.host = last = FunctionsHost(cloud, stage.module, stage.environment)
                await last.start()
                clients.is_there.set()
                await posting
                if number == kills - 1:
                    await _settle(cloud, stage, wire, is_control=is_control)
                clients.is_there.clear()
                await last.stop()
            rows, events = await stage.rows(), list(await wire.events())
        finally:
            await wire.clean()
    counted = _counted("control" if is_control else "exactly once", kills, wanted, rows, events, {}, since)
    return RequestCounts(counted, clients.requests, clients.changed)
