"""Everything around the workers of a run: it fills the queue, receives the events, and collects what is left."""

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.folder.artifacts import folder_of
from onceonly.algorithms.sweeper import sweep
from onceonly.assembly import open_transport, temporary_transport
from onceonly.assembly.deduplication import TokenIssuer, open_token_issuer, with_token
from onceonly.assembly.effects import create_blobs, open_blobs
from onceonly.config.location import scheme_of
from onceonly.documents.tokens import DocumentTokens
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import take_apart
from onceonly.model.errors import RetryableError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.model.token import Token
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.documents import Documents
from onceonly.ports.effects import ArtifactStore
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.runtime.environment import LIVE
from onceonly_demo.audit import JournalRow, Leftovers, RunRemains, SinkMessage
from onceonly_demo.backends import Backend, count_keys, open_backend, open_dedup
from onceonly_demo.endpoints import make_endpoints
from onceonly_demo.flights import LEDGER, LOYALTY, MILES_FLOWN, SINK
from onceonly_demo.locations import Locations
from onceonly_demo.options import Deduplication

CHUNK = 500
ATTEMPTS = 4  # each replaces the connections of one pool to a server that was restarted
EVERYTHING = 10**9
FOR_EVER = 10**15  # an instant, in milliseconds since 1970, that nothing was stored after


class DemoResources(Struct, frozen=True, kw_only=True):
    """What a run uses, as seen by the parent process. `dedup_documents` has tokens or marks; `issuer` activates tokens."""

    backend: Backend
    ports: Mapping[str, Ports]
    sink: Transport
    dedup_documents: Documents | None
    issuer: TokenIssuer | None
    blobs: ArtifactStore | None


class Scenario:
    """The queues, the store and the services of one run, in the parent process, which is not killed."""

    def __init__(self, resources: DemoResources) -> None:
        self._resources = resources
        self._sink = resources.sink
        self._swept_tokens = self._swept_attempts = 0
        self.sunk: list[SinkMessage] = []

    async def fill(self, sends: Sequence[Send]) -> None:
        """Send the messages to `ledger`, all tokens before any message. Raises RuntimeError if the queue rejects one."""
        if self._resources.issuer is not None:
            sends = [replace(send, message=with_token(send.message)) for send in sends]
            tokens = list(dict.fromkeys(Token(send.message.token, send.to) for send in sends))
            for start in range(0, len(tokens), CHUNK):
                await self._resources.issuer.add(tokens[start : start + CHUNK])
        for start in range(0, len(sends), CHUNK):
            answers = await self._sink.send(sends[start : start + CHUNK])
            if set(answers) != {Answer.TAKEN}:
                raise RuntimeError("the queue did not take every message")

    async def drain_sink(self) -> None:
        """Receive the events on the wire and store all of them. The sink is not an endpoint and does not deduplicate."""
        while deliveries := await self._sink.receive(CHUNK, 0):
            self.sunk += [_sunk(delivery) for delivery in deliveries]
            await self._sink.ack(deliveries)

    async def depths(self) -> dict[str, Depth]:
        """Count what is left in each queue."""
        return {name: await self._sink.depth(name) for name in (LEDGER, LOYALTY, SINK)}

    async def remains(self) -> RunRemains:
        """Sweep, then collect what the run left. Unused connections that a server has closed fail only now."""
        for _ in range(ATTEMPTS - 1):
            with suppress(RetryableError):
                return await self._remains()
        return await self._remains()

    async def _remains(self) -> RunRemains:
        await self._sweep()
        found = await self._resources.backend.read()
        prepared, live, marks = await self._count_dedup()
        left = Leftovers(
            records=found.records,
            queued=sum(depth.waiting + depth.held + depth.delayed for depth in (await self.depths()).values()),
            claims=found.claims,
            prepared=prepared,
            live=found.live + live,
            attempts=found.attempts,
        )
        blobs = self._resources.blobs
        return RunRemains(
            journal=found.counted.journal,
            sunk=self.sunk,
            dead=await self._dead(),
            miles=found.counted.miles,
            left=left,
            blobs=await blobs.names() if blobs is not None else (),
            marks=found.marks + marks,
            swept_tokens=self._swept_tokens,
            swept_attempts=self._swept_attempts,
            half_batches=found.half_batches,
        )

    async def _sweep(self) -> None:
        """Sweep now what the endpoints' sweepers would sweep in ten minutes. No endpoint runs any more."""
        for ports in self._resources.ports.values():
            tokens, artifacts = ports.maintenance.tokens, ports.maintenance.artifacts
            while tokens is not None and (swept := await sweep(tokens, FOR_EVER, CHUNK, ports)):
                self._swept_tokens += swept
            while artifacts is not None and (swept := await artifacts.sweep(FOR_EVER, CHUNK)):
                self._swept_attempts += swept

    async def _count_dedup(self) -> tuple[int, int, int]:
        """Count the tokens that are prepared, those that are live, and the marks of a dedup store."""
        documents = self._resources.dedup_documents
        if documents is None:
            return 0, 0, 0
        prepared = len(await DocumentTokens(documents, clock=LIVE.clock).prepared(FOR_EVER, EVERYTHING))
        return prepared, await count_keys(documents, "token/") - prepared, await count_keys(documents, "done/")

    async def _dead(self) -> list[JournalRow]:
        letters = await self._resources.ports[LEDGER].dead_letters.page(Filter(), limit=EVERYTHING)
        return [
            JournalRow(letter.endpoint, letter.message.source, letter.message.id, "")
            if letter.message is not None
            else JournalRow(letter.endpoint, "", "", "")
            for letter in letters
        ]


@asynccontextmanager
async def open_scenario(locations: Locations) -> AsyncIterator[Scenario]:
    """Create the queues and tables of a run, and delete them at the end."""
    async with AsyncExitStack() as stack:
        endpoints, sinks = make_endpoints(locations), Topology(endpoint=SINK, events=(MILES_FLOWN,))
        backend = await open_backend(stack, locations)
        dedup_documents = await open_dedup(stack, locations)
        blobs = await _open_blobs(stack, locations)
        topologies = [sinks, *(endpoint.topology() for endpoint in endpoints)]
        await stack.enter_async_context(temporary_transport(locations.transport, topologies))
        ports = {endpoint.name: await stack.enter_async_context(host_of(endpoint).opened()) for endpoint in endpoints}
        sink = await stack.enter_async_context(open_transport(locations.transport, SINK))
        await sink.declare([sinks])
        issuer = None
        if locations.deduplication is Deduplication.TOKENS:
            issuer = await stack.enter_async_context(open_token_issuer(endpoints[0].settings))
        yield Scenario(
            DemoResources(backend=backend, ports=ports, sink=sink, dedup_documents=dedup_documents, issuer=issuer, blobs=blobs)
        )


async def _open_blobs(stack: AsyncExitStack, locations: Locations) -> ArtifactStore | None:
    if not locations.blobs:
        return None
    if scheme_of(locations.blobs) == "folder":
        await create_blobs(locations.blobs)
        stack.callback(shutil.rmtree, folder_of(locations.blobs))
    blobs = await stack.enter_async_context(open_blobs(locations.blobs))
    stack.push_async_callback(_delete_all, blobs)
    return blobs


async def _delete_all(blobs: ArtifactStore) -> None:
    for name in await blobs.names():
        await blobs.delete(name)


def _sunk(delivery: Delivery) -> SinkMessage:
    event = take_apart(delivery.headers, delivery.body)
    return SinkMessage(event.attributes["source"], event.attributes["id"], event.body)
