"""A run: the ways take turns, round by round, at each concurrency; then messages one at a time, for the time they take."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from statistics import median
from typing import NamedTuple
from uuid import uuid4

from msgspec import Struct, field

from benchmarks import machine
from benchmarks.crew import RunFailed
from benchmarks.machine import Machine
from benchmarks.results import Latency, Spread, percentile, spread
from benchmarks.scenario import order_ids
from benchmarks.stages import database, rabbitmq
from benchmarks.transactions import backlog
from benchmarks.transactions.backlog import RelayBacklog
from benchmarks.transactions.places import RunTotals, TransactionsPlaces
from benchmarks.transactions.ways import KEYS, RATIOS, WAYS, Place, TransactionVariant
from onceonly.assembly import open_database
from onceonly.sql.schema import create_user_tables

WARM_UP = 20  # orders that are not counted
PATIENCE = 60.0  # seconds
AT_ONCE = 8  # orders at most, should a commit hang: the rate waits for nobody


class TransactionsJob(Struct, frozen=True, kw_only=True):
    """What to do: so many orders a round, for each way and concurrency; then so many seconds at so many orders a second."""

    database: str
    broker: str
    orders: int = 1000
    rounds: int = 5
    concurrencies: tuple[int, ...] = (1, 8, 32)
    rate: int = 20
    seconds: float = 10.0
    backlog: int = 10_000
    relays: tuple[int, ...] = (1, 2, 4)


class Rates(Struct, kw_only=True):
    """One way at one concurrency, each round: transactions a second, messages a second until the last was there, and CPU.

    That is in milliseconds of this process for each order, until its message was there: a busy machine changes it least.
    """

    way: str
    concurrency: int
    committed: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Timed(NamedTuple):
    """Orders a second until the last commit, and until the last message; CPU in milliseconds for each."""

    committed: float
    sent: float
    cpu: float


class Ratio(Struct, frozen=True, kw_only=True):
    """How one way's transactions compare with another's, round by round."""

    over: str
    under: str
    concurrency: int
    ratio: Spread


class TransactionsOutcome(Struct, kw_only=True):
    """What a run found. Latencies are from the block's end, so with the commit in them, and from the transaction's return."""

    date: str
    rounds: int
    orders: int
    machine: Machine
    versions: dict[str, str]
    rates: list[Rates] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    latency: dict[str, Latency] = field(default_factory=dict)
    latency_after: dict[str, Latency] = field(default_factory=dict)
    backlogs: list[RelayBacklog] = field(default_factory=list)


async def run(job: TransactionsJob, say: Callable[[str], None]) -> TransactionsOutcome:
    """Measure everything in places of its own. Raises RunFailed when an order or a message is missing or too many."""
    async with _opened(job) as (places, versions):
        outcome = TransactionsOutcome(
            date=datetime.now(UTC).date().isoformat(),
            rounds=job.rounds,
            orders=job.orders,
            machine=machine.look(),
            versions=versions,
        )
        for concurrency in job.concurrencies:
            found = await _rounds(places, job, concurrency)
            say(f"{concurrency} at once: " + ", ".join(f"{each.way} {median(each.committed):,.0f}/s" for each in found))
            outcome.rates += found
        outcome.ratios = list(_ratios(outcome.rates, job.concurrencies))
        for way in (way for way in WAYS if way.is_own):
            say(f"{way.name}: {job.rate} a second")
            before, after = await _latencies(places, way, job)
            outcome.latency[way.name] = _latency(before, job.rate)
            outcome.latency_after[way.name] = _latency(after, job.rate)
        for relays in job.relays:
            say(f"{relays} relays at a backlog")
            for shared in (True, False):
                outcome.backlogs.append(await backlog.measure(places, job.backlog, relays, shared=shared))
        outcome.machine.load_after = machine.load()
    return outcome


@asynccontextmanager
async def _opened(job: TransactionsJob) -> AsyncIterator[tuple[TransactionsPlaces, dict[str, str]]]:
    async with database.opened(job.database) as own, rabbitmq.opened(job.broker, own) as stage:
        async with open_database(own.url) as tables:
            await create_user_tables(tables, KEYS.metadata)
        yield TransactionsPlaces(own, stage), machine.versions(PostgreSQL=await own.version(), RabbitMQ=stage.version)


async def _rounds(places: TransactionsPlaces, job: TransactionsJob, concurrency: int) -> list[Rates]:
    """Run each way once a round, each round beginning with another one: what disturbs the machine disturbs all."""
    found = [Rates(way=way.name, concurrency=concurrency) for way in WAYS]
    for number in range(job.rounds):
        for each in (*range(number % len(WAYS), len(WAYS)), *range(number % len(WAYS))):
            async with WAYS[each].open(places, concurrency) as place:
                timed = await _round(places, WAYS[each], place, (job.orders, concurrency))
            found[each].committed.append(timed.committed)
            found[each].sent.append(timed.sent if WAYS[each].is_sent else 0.0)
            found[each].cpu.append(timed.cpu)
    return found


async def _round(places: TransactionsPlaces, way: TransactionVariant, place: Place, size: tuple[int, int]) -> Timed:
    """Place orders, so many at once, and count what is left."""
    concurrency = size[1]
    await _timed(places, way, place, (max(WARM_UP, concurrency), concurrency))  # connects, and does not count
    return await _timed(places, way, place, size)


async def _timed(places: TransactionsPlaces, way: TransactionVariant, place: Place, size: tuple[int, int]) -> Timed:
    count, concurrency = size
    await places.empty()
    tag = uuid4().hex[:8]
    began, cpu = time.perf_counter(), time.process_time()
    await _all_placed(place, order_ids(tag, count), concurrency)
    committed = count / (time.perf_counter() - began)
    if way.is_sent:
        await places.arrived(count)
    timed = Timed(committed, count / (time.perf_counter() - began), (time.process_time() - cpu) * 1000 / count)
    check(way, await places.left(tag, is_sent=way.is_sent), count)
    return timed


async def _all_placed(place: Place, orders: list[str], concurrency: int) -> None:
    waiting = iter(orders)

    async def client() -> None:
        for order_id in waiting:
            await place(order_id, _nothing)

    async with asyncio.TaskGroup() as clients:
        for _ in range(concurrency):
            clients.create_task(client())


def _nothing() -> None:
    """Note nothing."""


def check(way: TransactionVariant, left: RunTotals, count: int) -> None:
    """Compare what is left with what must be. Raises RunFailed."""
    messages = count if way.is_sent else 0
    expected = RunTotals(
        orders=count,
        distinct_orders=count,
        messages=messages,
        distinct_messages=messages,
        records=0,
        outbox=0 if way.is_sent else count,
        keys=count if way.has_key else 0,
    )
    if left != expected:
        raise RunFailed(f"{way.name}: wrong totals: {left}, expected {expected}")


def _ratios(rates: list[Rates], concurrencies: tuple[int, ...]) -> list[Ratio]:
    found = {(each.way, each.concurrency): each.committed for each in rates}
    return [
        Ratio(over=over, under=under, concurrency=concurrency, ratio=spread([a / b for a, b in pairs]))
        for concurrency in concurrencies
        for over, under in RATIOS
        for pairs in [zip(found[over, concurrency], found[under, concurrency], strict=True)]
    ]


async def _latencies(
    places: TransactionsPlaces, way: TransactionVariant, job: TransactionsJob
) -> tuple[list[float], list[float]]:
    """Place orders on time, whatever comes back; gives how long each message took from the block's end, and from the return."""
    await places.empty()
    orders = order_ids(uuid4().hex[:8], WARM_UP + round(job.rate * job.seconds))
    ended: dict[str, float] = {}
    returned: dict[str, float] = {}
    came: dict[str, list[float]] = {}
    complete, gate = asyncio.Event(), asyncio.Semaphore(AT_ONCE)

    def arrive(order_id: str) -> None:
        came.setdefault(order_id, []).append(time.perf_counter())
        if len(came) == len(orders):
            complete.set()

    channel = await places.consume(arrive)
    async with way.open(places, 1) as place, asyncio.TaskGroup() as clients:
        began = time.perf_counter()

        async def client(order_id: str) -> None:
            async with gate:
                await place(order_id, lambda: ended.__setitem__(order_id, time.perf_counter()))
                returned[order_id] = time.perf_counter()

        for number, order_id in enumerate(orders):
            await asyncio.sleep(max(0.0, began + number / job.rate - time.perf_counter()))
            clients.create_task(client(order_id))
        await asyncio.wait_for(complete.wait(), PATIENCE)
    await channel.close()
    if twice := [order_id for order_id, times in came.items() if len(times) > 1]:
        raise RunFailed(f"{way.name}: {len(twice)} messages came twice")
    counted = orders[WARM_UP:]
    return [came[each][0] - ended[each] for each in counted], [came[each][0] - returned[each] for each in counted]


def _latency(seconds: list[float], rate: int) -> Latency:
    ordered = sorted(each * 1000 for each in seconds)
    p50, p95, p99 = (round(percentile(ordered, share), 2) for share in (0.5, 0.95, 0.99))
    return Latency(rate=rate, messages=len(ordered), p50=p50, p95=p95, p99=p99)
