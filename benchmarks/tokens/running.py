"""A run: messages with live tokens go in, some of them twice, until both endpoints have taken all of them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

from msgspec import Struct

from benchmarks.crew import RunFailed
from benchmarks.tokens.census import TokenCensus, problems
from benchmarks.tokens.chain import LEDGER, TILL, endpoints, sales
from benchmarks.tokens.places import TokensPlaces, opened, watched, with_queue_prefix
from onceonly import Endpoint, WorkerSettings
from onceonly.assembly import open_transport, temporary_transport
from onceonly.assembly.deduplication import open_token_issuer, with_token
from onceonly.assembly.document_tokens import drops_of
from onceonly.cli.bulk_sender import SendTally, TokenIssuing, send_all
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message
from onceonly.ports.transport import Transport
from onceonly.runtime.processes.counters import DEAD, HANDLED, HELD, KNOWN, CounterRow, SharedCounters

EARLY = 1000
"""After how many messages the first census is taken."""
TWICE = 10
"""Every so many messages one is delivered twice."""
AHEAD = 4000
BATCH = 500
STALLED = 120.0  # seconds without any message handled
LOOK = 0.05  # seconds between two looks at the counters


class TokensJob(Struct, frozen=True, kw_only=True):
    """What to do: how many messages, where, and how the workers work."""

    messages: int
    store: str
    tokens: str
    transport: str
    worker: WorkerSettings = WorkerSettings()


class TokensOutcome(Struct, kw_only=True):
    """What came of a run. `each` is what one message cost, through the whole chain."""

    messages: int
    copies: int
    refused: int
    seconds: float
    rate: float
    each: dict[str, float]
    early: TokenCensus
    late: TokenCensus
    problems: list[str]


class Chain:
    """A running chain: feeds it, and waits for it."""

    def __init__(self, till: Endpoint, transport: Transport, counters: SharedCounters) -> None:
        self._till = till
        self._transport = transport
        self._rows: dict[str, CounterRow] = {TILL: counters.row(0), LEDGER: counters.row(1)}
        self.fed = 0
        self.copies = 0

    async def feed(self, last: int) -> None:
        """Send all messages up to this number, never too many ahead; then wait until all are through."""
        async with open_token_issuer(self._till.settings) as issuer:
            issuing = TokenIssuing(self._transport, issuer)
            again: list[Message] = []
            for first in range(self.fed + 1, last + 1, BATCH):
                fresh = [with_token(message) for message in sales(range(first, min(first + BATCH, last + 1)))]
                await self._send(fresh, issuing)
                await self._send(again, self._transport)
                again = fresh[::TWICE]
                self.fed += len(fresh)
                await self._wait(lambda: self.fed - self._through(LEDGER) <= AHEAD)
            await self._send(again, self._transport)
        await self._wait(lambda: self._through(LEDGER) >= self.fed and self._through(TILL) >= self.fed + self.copies)
        await self._settled()

    async def _send(self, messages: list[Message], sender: TokenIssuing | Transport) -> None:
        self.copies += 0 if isinstance(sender, TokenIssuing) else len(messages)
        tally = SendTally()
        await send_all(messages, sender, to=TILL, tally=tally, tick=lambda _: None)
        if tally.sent != len(messages):
            raise RunFailed(f"{len(messages) - tally.sent} messages could not be sent: {tally}")

    async def _settled(self) -> None:
        """Wait until nothing waits and nothing is in work."""
        for endpoint, row in self._rows.items():
            while (await self._transport.depth(endpoint)).waiting or row.get(HELD):  # noqa: ASYNC110 - a broker tells nobody when a queue is empty
                await asyncio.sleep(LOOK)

    async def _wait(self, holds: Callable[[], bool]) -> None:
        seen, since = self._all(), time.monotonic()
        while not holds():
            await asyncio.sleep(LOOK)
            if self._all() != seen:
                seen, since = self._all(), time.monotonic()
            if time.monotonic() - since > STALLED:
                raise RunFailed(f"nothing was handled for {STALLED:g} s, at {seen} of {self.fed}")

    def _through(self, endpoint: str) -> int:
        return sum(self._rows[endpoint].get(column) for column in (HANDLED, KNOWN, DEAD))

    def _all(self) -> tuple[int, ...]:
        return tuple(self._through(endpoint) for endpoint in self._rows)


async def run(job: TokensJob, say: Callable[[str], None]) -> TokensOutcome:
    """Run it in places of its own. Raises RunFailed when it comes to a stand, SetupError."""
    first = min(EARLY, job.messages // 2)
    async with opened(job.store, job.tokens) as places, watched(places) as heard:
        async with _running(job, places) as chain:
            await chain.feed(first)
            early = await places.census()
            say(f"after {first:,} messages: {early.entities} entities with {early.size:,} bytes")
            heard.clear()
            begun = time.perf_counter()
            await chain.feed(job.messages)
            seconds = time.perf_counter() - begun
            each = {name: round(number / (job.messages - first), 2) for name, number in sorted(heard.items())}
        late = await places.census()
        refused = sum([await drops_of(place, TILL).read() for place in places.documents.values()])
    return TokensOutcome(
        messages=job.messages,
        copies=chain.copies,
        refused=refused,
        seconds=round(seconds, 1),
        rate=round((job.messages - first) / seconds, 1),
        each=each,
        early=early,
        late=late,
        problems=[
            *(f"after {first:,}: {problem}" for problem in problems(early, early, messages=first)),
            *problems(late, early, messages=job.messages),
        ],
    )


@asynccontextmanager
async def _running(job: TokensJob, places: TokensPlaces) -> AsyncIterator[Chain]:
    """Run both endpoints, on queues of the run's own."""
    transport_url = with_queue_prefix(job.transport)
    both = endpoints(places.store, places.tokens, transport_url, job.worker)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="onceonly-bench-"))
        counters = stack.enter_context(SharedCounters.create(f"{folder}/board", len(both)))
        topologies = [endpoint.topology() for endpoint in both]
        await stack.enter_async_context(temporary_transport(transport_url, topologies))
        transport = await stack.enter_async_context(open_transport(transport_url, TILL))
        await transport.declare(topologies)
        async with asyncio.TaskGroup() as working:
            for number, endpoint in enumerate(both):
                working.create_task(host_of(endpoint).run(stop, counters=counters.row(number)))
            try:
                yield Chain(both[0], transport, counters)
            finally:
                stop.set()
