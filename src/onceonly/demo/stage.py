"""Everything around the workers of a run: fills the queue, plays the dumb sink, and collects what is left."""

import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.folder.artifacts import folder_of
from onceonly.algorithms.sweeper import sweep
from onceonly.assembly import open_transport, temporary_transport
from onceonly.assembly.blobs import create as create_blobs
from onceonly.assembly.blobs import open_blobs
from onceonly.assembly.token_issuer import TokenIssuer, open_token_issuer, with_token
from onceonly.config.location import scheme_of
from onceonly.demo.audit import JournalRow, Leftovers, RunRemains, SinkMessage
from onceonly.demo.endpoints import make
from onceonly.demo.flights import LEDGER, LOYALTY, MILES_FLOWN, SINK
from onceonly.demo.ground import DemoStore, count_keys, open_dedup, open_ground
from onceonly.demo.options import Deduplication
from onceonly.demo.place import DemoUrls
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

CHUNK = 500
LOOKS = 4  # each replaces what one pool still has of a server that was restarted
EVERYTHING = 10**9
FOR_EVER = 10**15  # an instant, in milliseconds since 1970, that nothing was stored after


class DemoResources(Struct, frozen=True, kw_only=True):
    """What a run uses, as seen by the parent process. `dedup_documents` has tokens or marks; `issuer` makes tokens live."""

    ground: DemoStore
    ports: Mapping[str, Ports]
    sink: Transport
    dedup_documents: Documents | None
    issuer: TokenIssuer | None
    blobs: ArtifactStore | None


class DemoSession:
    """One run's queues and places, seen from the parent process, which is not killed."""

    def __init__(self, place: DemoUrls, scenery: DemoResources) -> None:
        """Stand on what `staged` opened."""
        self._place = place
        self._scenery = scenery
        self._sink = scenery.sink
        self._swept_tokens = self._swept_attempts = 0
        self.sunk: list[SinkMessage] = []

    async def fill(self, sends: Sequence[Send]) -> None:
        """Send the messages to `ledger`, all tokens before any message. Raises RuntimeError when the queue refuses one."""
        if self._scenery.issuer is not None:
            sends = [replace(send, message=with_token(send.message)) for send in sends]
            tokens = list(dict.fromkeys(Token(send.message.token, send.to) for send in sends))
            for start in range(0, len(tokens), CHUNK):
                await self._scenery.issuer.add(tokens[start : start + CHUNK])
        for start in range(0, len(sends), CHUNK):
            answers = await self._sink.send(sends[start : start + CHUNK])
            if set(answers) != {Answer.TAKEN}:
                raise RuntimeError("the queue did not take every message")

    async def drain_sink(self) -> None:
        """Take what came on the wire and remember all of it: the sink is not an endpoint and does not deduplicate."""
        while deliveries := await self._sink.receive(CHUNK, 0):
            self.sunk += [_sunk(delivery) for delivery in deliveries]
            await self._sink.ack(deliveries)

    async def depths(self) -> dict[str, Depth]:
        """Count what is left in each queue."""
        return {name: await self._sink.depth(name) for name in (LEDGER, LOYALTY, SINK)}

    async def remains(self) -> RunRemains:
        """Sweep, then collect what the run left; unused connections that a server ended fail only now."""
        for _ in range(LOOKS - 1):
            with suppress(RetryableError):
                return await self._remains()
        return await self._remains()

    async def _remains(self) -> RunRemains:
        await self._sweep()
        found = await self._scenery.ground.look()
        prepared, live, marks = await self._count_dedup()
        left = Leftovers(
            records=found.records,
            queued=sum(depth.waiting + depth.held + depth.delayed for depth in (await self.depths()).values()),
            claims=found.claims,
            prepared=prepared,
            live=found.live + live,
            attempts=found.attempts,
        )
        blobs = self._scenery.blobs
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
        )

    async def _sweep(self) -> None:
        """Do now what the endpoints' sweepers would do when ten minutes have passed. No endpoint runs any more."""
        for ports in self._scenery.ports.values():
            tokens, artifacts = ports.maintenance.tokens, ports.maintenance.artifacts
            while tokens is not None and (swept := await sweep(tokens, FOR_EVER, CHUNK, ports)):
                self._swept_tokens += swept
            while artifacts is not None and (swept := await artifacts.sweep(FOR_EVER, CHUNK)):
                self._swept_attempts += swept

    async def _count_dedup(self) -> tuple[int, int, int]:
        """Count the tokens that are prepared, those that are live, and the marks of a dedup store."""
        documents = self._scenery.dedup_documents
        if documents is None:
            return 0, 0, 0
        prepared = len(await DocumentTokens(documents, clock=LIVE.clock).prepared(FOR_EVER, EVERYTHING))
        return prepared, await count_keys(documents, "token/") - prepared, await count_keys(documents, "done/")

    async def _dead(self) -> list[JournalRow]:
        letters = await self._scenery.ports[LEDGER].dead_letters.page(Filter(), limit=EVERYTHING)
        return [
            JournalRow(letter.endpoint, letter.message.source, letter.message.id, "")
            if letter.message is not None
            else JournalRow(letter.endpoint, "", "", "")
            for letter in letters
        ]


@asynccontextmanager
async def staged(place: DemoUrls) -> AsyncIterator[DemoSession]:
    """Make a run's queues and tables; leaves nothing at the end."""
    async with AsyncExitStack() as stack:
        endpoints, sinks = make(place), Topology(endpoint=SINK, events=(MILES_FLOWN,))
        ground = await open_ground(stack, place)
        dedup_documents = await open_dedup(stack, place)
        blobs = await _open_blobs(stack, place)
        topologies = [sinks, *(endpoint.topology() for endpoint in endpoints)]
        await stack.enter_async_context(temporary_transport(place.transport, topologies))
        ports = {endpoint.name: await stack.enter_async_context(host_of(endpoint).opened()) for endpoint in endpoints}
        sink = await stack.enter_async_context(open_transport(place.transport, SINK))
        await sink.declare([sinks])
        issuer = None
        if place.deduplication is Deduplication.TOKENS:
            issuer = await stack.enter_async_context(open_token_issuer(endpoints[0].settings))
        yield DemoSession(
            place,
            DemoResources(ground=ground, ports=ports, sink=sink, dedup_documents=dedup_documents, issuer=issuer, blobs=blobs),
        )


async def _open_blobs(stack: AsyncExitStack, place: DemoUrls) -> ArtifactStore | None:
    if not place.blobs:
        return None
    if scheme_of(place.blobs) == "folder":
        await create_blobs(place.blobs)
        stack.callback(shutil.rmtree, folder_of(place.blobs))
    blobs = await stack.enter_async_context(open_blobs(place.blobs))
    stack.push_async_callback(_delete_all, blobs)
    return blobs


async def _delete_all(blobs: ArtifactStore) -> None:
    for name in await blobs.names():
        await blobs.delete(name)


def _sunk(delivery: Delivery) -> SinkMessage:
    event = take_apart(delivery.headers, delivery.body)
    return SinkMessage(event.attributes["source"], event.attributes["id"], event.body)
