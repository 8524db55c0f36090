"""How long a message takes from its publish to the arrival of what it published, at a fixed rate that waits for nobody."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.crew import RunFailed, crew
from benchmarks.rows import BenchmarkRow
from benchmarks.scenario import OrderPlaced, order_ids
from benchmarks.stages.rabbitmq import RabbitMQBackend

RATE = 200
WARM_UP = 200  # messages that are not counted
PATIENCE = 120.0
ROWS = ("onceonly_orm", "at_least_once_orm", "outbox_orm", "outbox_orm_quorum")
_decode = msgspec.json.Decoder(OrderPlaced).decode


async def measure(stage: RabbitMQBackend, row: BenchmarkRow, concurrency: int, seconds: float) -> list[float]:
    """Return the latency of each message in seconds, unordered. Raises RunFailed when not each came out exactly once."""
    orders = order_ids(uuid4().hex[:8], WARM_UP + round(RATE * seconds))
    await stage.fill(row, [])
    async with crew(stage.job(row, concurrency)) as workers:
        await workers.ready()
        await workers.go()
        sent, came = await _exchange(stage, row, orders)
        await workers.stop()
    written = await stage.rows(orders[0].partition("-")[0])
    if sorted(written) != sorted(orders) or came.keys() != set(orders):
        raise RunFailed(f"{row.name}: {len(written)} rows and {len(came)} messages of {len(orders)}")
    return [came[order] - sent[order] for order in orders[WARM_UP:]]


async def _exchange(stage: RabbitMQBackend, row: BenchmarkRow, orders: list[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Publish on time, whatever comes back; gives when each order was sent and when its answer came."""
    sent: dict[str, float] = {}
    came: dict[str, float] = {}
    complete = asyncio.Event()

    async def arrive(delivery: Any) -> None:
        order = _decode(delivery.body).order_id
        if order in came:
            raise RunFailed(f"{row.name}: {order} came twice")
        came[order] = time.perf_counter()
        if len(came) == len(orders):
            complete.set()

    channel = await stage.consumer(arrive)
    async with asyncio.TaskGroup() as publishing:
        began = time.perf_counter()
        for number, order in enumerate(orders):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            sent[order] = time.perf_counter()
            publishing.create_task(stage.place(row, order))
    try:
        await asyncio.wait_for(complete.wait(), PATIENCE)
    except TimeoutError:
        raise RunFailed(f"{row.name}: {len(came)} of {len(orders)} messages came out at {RATE} a second") from None
    await channel.close()
    return sent, came
