"""Where transactions work: a database and queues of the run's own, and what is left in them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.crew import RunFailed
from benchmarks.rows import BY_NAME
from benchmarks.scenario import OrderPlaced
from benchmarks.stages.database import BackendDatabase
from benchmarks.stages.rabbitmq import RabbitMQBackend

GLANCE = 0.005  # seconds between two looks at the output queue
PATIENCE = 60.0
FORGETTING = 10.0
_ROW = BY_NAME["onceonly_orm"]  # a stage is asked about a row; what is counted here is the same for all
_decode = msgspec.json.Decoder(OrderPlaced).decode


class RunTotals(Struct, frozen=True, kw_only=True):
    """What a run left, counted: orders, messages, both distinct, records and outbox rows that wait, keys with an answer."""

    orders: int
    distinct_orders: int
    messages: int
    distinct_messages: int
    records: int
    outbox: int
    keys: int


class TransactionsPlaces:
    """The places of one benchmark."""

    def __init__(self, database: BackendDatabase, rabbitmq: RabbitMQBackend) -> None:
        """Use what others have opened."""
        job = rabbitmq.job(_ROW, 1)
        self.database, self.broker, self.prefix = job.database, job.broker, job.prefix
        self.transport = f"{job.broker}?prefix={job.prefix}"
        self._database = database
        self._rabbitmq = rabbitmq

    async def empty(self) -> None:
        """Empty the output queue and all tables."""
        await self._rabbitmq.fill(_ROW, [])

    async def arrived(self, count: int) -> None:
        """Wait until so many messages are in the output queue. Raises RunFailed."""
        try:
            async with asyncio.timeout(PATIENCE):
                while await self._rabbitmq.arrived(_ROW) < count:  # noqa: ASYNC110 - a broker tells nobody what is in a queue
                    await asyncio.sleep(GLANCE)
        except TimeoutError:
            raise RunFailed(f"not all of {count} messages came out within {PATIENCE:g} s") from None

    async def forgotten(self) -> None:
        """Wait until no record is left. Raises RunFailed."""
        try:
            async with asyncio.timeout(PATIENCE):
                while await self._database.look("select count(*) from onceonly_records"):  # noqa: ASYNC110 - a database tells nobody
                    await asyncio.sleep(GLANCE)
        except TimeoutError:
            raise RunFailed(f"records were left after {PATIENCE:g} s") from None

    async def waiting(self) -> int:
        """Count the messages in the output queue."""
        return await self._rabbitmq.arrived(_ROW)

    async def consume(self, arrive: Callable[[str], None]) -> Any:
        """Have each order's message told as it comes; gives the channel, to be closed."""

        async def take(delivery: Any) -> None:
            arrive(_decode(delivery.body).order_id)

        return await self._rabbitmq.consumer(take)

    async def left(self, tag: str, *, is_sent: bool) -> RunTotals:
        """Count what a run left, once what is sent is forgotten as well; empties the output queue."""
        totals = await self._rabbitmq.totals(_ROW, tag)
        if is_sent:
            await self._settled()
        own = "select count(*) from onceonly_keys where answer is not null"
        hand = "select count(*) from baseline_key where answer is not null"
        return RunTotals(
            orders=totals.rows,
            distinct_orders=totals.distinct_rows,
            messages=totals.messages,
            distinct_messages=totals.distinct_messages,
            records=await self._database.look("select count(*) from onceonly_records"),
            outbox=await self._database.look("select count(*) from baseline_outbox"),
            keys=await self._database.look(own) + await self._database.look(hand),
        )

    async def _settled(self) -> None:
        """Wait for a while until nothing waits to be sent; what stays is counted."""
        waiting = "select (select count(*) from onceonly_records) + (select count(*) from baseline_outbox)"
        with suppress(TimeoutError):
            async with asyncio.timeout(FORGETTING):
                while await self._database.look(waiting):  # noqa: ASYNC110 - a database tells nobody what is in it
                    await asyncio.sleep(GLANCE)
