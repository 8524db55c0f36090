"""Runs both programs of the example on the local Functions host, with kills and freezes, and counts what came of it.

Service Bus and the stored schedule of the timer are in this process. What onceonly sends goes to RabbitMQ. A fifth of the
orders is sent twice.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

from sqlalchemy import select

from examples.hosts.functions_host import EPOCH, Cloud, FunctionsHost, LeasingQueue, TimerStatus
from examples.hosts.harness import Counts, Places, created_tables, opened_database, with_copies
from examples.hosts.program import Order
from examples.hosts.rabbitmq import RabbitMQWire

PACKAGE = "examples.hosts.azure_functions"
SETTLING_SECONDS, GLANCE_SECONDS, FROZEN_SECONDS, LONGEST_MOMENT = 120.0, 0.1, 1.3, 0.03
MOST_DELIVERIES = 100
"""The queue's `maxDeliveryCount`. With the default of 10 the service gives up orders that ten hosts had when they died."""
LIFE_SECONDS = 20.0
"""How long a host may take to report the orders at which it is killed."""


async def run(places: Places, *, is_control: bool, ids: int = 100, kills: int = 10, seed: int = 1) -> Counts:
    """Run one program, which is killed and frozen in turn. Returns the numbers; ticks count as orders without an event."""
    since, rng = time.monotonic(), random.Random(seed)  # noqa: S311 - when a process dies is no secret
    prefix = f"hosts-{uuid4().hex[:8]}-"
    module = f"{PACKAGE}.{'control' if is_control else 'exactly_once'}"
    wire = RabbitMQWire(places.broker, prefix)
    wanted = [f"order-{number}" for number in range(ids)]
    async with opened_database(places.postgresql) as engine:
        store = engine.url.render_as_string(hide_password=False)
        environment = {"HOSTS_STORE": store, "HOSTS_BROKER": places.broker, "HOSTS_PREFIX": prefix}
        if not is_control:
            await created_tables(f"{module}:shop", environment)
        cloud = Cloud()
        queue = cloud.service_bus["place_order"] = LeasingQueue(MOST_DELIVERIES)
        timer = cloud.timers["count_orders"] = TimerStatus()
        try:
            await wire.prepare()
            sent = with_copies(wanted)
            for number in range(kills):
                timer.wanted += 1
                for each in sent[len(sent) * number // kills : len(sent) * (number + 1) // kills]:
                    queue.send({"order_id": each})
                await _work_and_die(cloud, module, environment, rng, number)
            host = FunctionsHost(cloud, module, environment)
            await host.start()
            until = time.monotonic() + SETTLING_SECONDS
            while cloud.waiting and time.monotonic() < until:  # noqa: ASYNC110 - the services tell nobody
                await asyncio.sleep(GLANCE_SECONDS)
            await host.stop()
            async with engine.connect() as connection:
                rows = Counter((await connection.execute(select(Order.order_id))).scalars())
            published = [(event.id, event.order_id) for event in await wire.events()]
        finally:
            await wire.clean()
    published += [("", json.loads(each)["order_id"]) for each in cloud.sent]
    ticks = [f"tick {(EPOCH + timedelta(minutes=number)).isoformat()}" for number in range(timer.wanted)]
    return _counted("control" if is_control else "exactly once", kills, wanted, ticks, rows, published, since)


async def _work_and_die(  # noqa: PLR0917 - what a host is made of
    cloud: Cloud, module: str, environment: Mapping[str, str], rng: random.Random, number: int
) -> None:
    """Run a host until it has some of its messages in work. It is killed then, or its worker, or it is frozen before."""
    host = FunctionsHost(cloud, module, environment)
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
        other = FunctionsHost(cloud, module, environment)
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
    ticks: Sequence[str],
    rows: Counter[str],
    events: Sequence[tuple[str, str]],
    since: float,
) -> Counts:
    published = Counter(order_id for _, order_id in events)
    taken = Counter(order_id for _, order_id in {(id_ or uuid4().hex, order_id) for id_, order_id in events})
    return Counts(
        program=program,
        kills=kills,
        ids=len(ids) + len(ticks),
        rows=rows.total(),
        rows_lost=sum(not rows[each] for each in [*ids, *ticks]),
        rows_doubled=sum(count > 1 for count in rows.values()),
        events=len(events),
        events_lost=sum(not published[each] for each in ids),
        repeated=len(events) - len(published),
        by_id_doubled=sum(count > 1 for count in taken.values()),
        seconds=round(time.monotonic() - since, 1),
    )
