"""A run: on each broker, the raw handler and the echo take turns. The ratio of each round is what counts."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from statistics import median
from uuid import uuid4

from msgspec import Struct

from benchmarks import machine
from benchmarks.machine import Machine
from benchmarks.measuring import RunSample, run
from benchmarks.results import Spread, spread
from benchmarks.rows import BenchmarkRow
from benchmarks.rows.onceonly import OUT, SHOP, topologies
from benchmarks.stages import database
from benchmarks.stages.transport import TransportBackend
from onceonly.assembly import open_transport, temporary_transport

TRIED = (1, 2)
"""How many batches the raw handler has at once. Each is tried once, and the better one is measured."""


class BrokerPair(Struct, frozen=True, kw_only=True):
    """The two rows of one broker, where it listens, and the ratio that was asked."""

    url: str
    echo: str
    asked: float


PAIRS = {
    "nats": BrokerPair(url="nats://127.0.0.1:4222", echo="nats_echo:echo", asked=0.4),
    "redis": BrokerPair(url="redis://127.0.0.1:6379/13", echo="redis_echo:echo", asked=0.25),
}


class BrokersJob(Struct, frozen=True, kw_only=True):
    """What to measure: on which brokers, with how many messages in a round, in how many rounds."""

    database: str
    brokers: Sequence[str] = tuple(PAIRS)
    messages: int = 12_000
    rounds: int = 5


class BrokerResult(Struct, frozen=True, kw_only=True):
    """What one broker showed. Rates are messages a second, and `cpu` is CPU seconds of the worker for 1,000 messages."""

    broker: str
    batches: int
    raw: tuple[RunSample, ...]
    echo: tuple[RunSample, ...]
    ratio: Spread
    cpu_ratio: float
    asked: float


class BrokersOutcome(Struct, frozen=True, kw_only=True):
    """What came of a run."""

    date: str
    machine: Machine
    versions: dict[str, str]
    results: tuple[BrokerResult, ...]


async def measure(job: BrokersJob, say: Callable[[str], None]) -> BrokersOutcome:
    """Measure the brokers one after another. Raises RunFailed when a message or a row is missing or too many."""
    before = machine.look()
    results = [await _measured(name, job, say) for name in job.brokers]
    before.load_after = machine.load()
    today = datetime.now(UTC).date().isoformat()
    return BrokersOutcome(date=today, machine=before, versions=machine.versions(), results=tuple(results))


async def _measured(name: str, job: BrokersJob, say: Callable[[str], None]) -> BrokerResult:
    pair = PAIRS[name]
    raw = _row(f"{name}_raw", f"onceonly, raw handler, {name}", "onceonly:raw_elsewhere", job.messages)
    echo = _row(f"{name}_echo", f"the driver's echo, {name}", pair.echo, job.messages)
    async with _opened(pair.url, job.database) as stage:
        tried = {each: (await run(stage, raw, job.messages, each)).rate for each in TRIED}
        say(f"{name}: tried {', '.join(f'{each} at once: {rate:,.0f}/s' for each, rate in tried.items())}")
        batches = max(tried, key=tried.__getitem__)
        await run(stage, echo, job.messages, 1)
        ours, theirs = list[RunSample](), list[RunSample]()
        for number in range(1, job.rounds + 1):
            ours.append(await run(stage, raw, job.messages, batches))
            theirs.append(await run(stage, echo, job.messages, 1))
            say(f"{name}, round {number}: {ours[-1].rate:,.0f}/s, echo {theirs[-1].rate:,.0f}/s")
    return BrokerResult(
        broker=name,
        batches=batches,
        raw=tuple(ours),
        echo=tuple(theirs),
        ratio=spread([mine.rate / limit.rate for mine, limit in zip(ours, theirs, strict=True)]),
        cpu_ratio=round(median(limit.cpu / mine.cpu for mine, limit in zip(ours, theirs, strict=True)), 3),
        asked=pair.asked,
    )


def _row(name: str, title: str, work: str, messages: int) -> BenchmarkRow:
    return BenchmarkRow(name=name, title=title, work=work, messages=messages, about=title)


@asynccontextmanager
async def _opened(url: str, server: str) -> AsyncIterator[TransportBackend]:
    """Make a database and queues of this run's own. All of it is gone at the end."""
    prefix = f"bench{uuid4().hex[:8]}."
    place = f"{url}?prefix={prefix}"
    async with database.opened(server) as own, temporary_transport(place, topologies()):
        async with open_transport(place, SHOP) as shop:
            await shop.declare(topologies())
        async with open_transport(place, OUT) as output:
            yield TransportBackend(url, prefix, own, output)
