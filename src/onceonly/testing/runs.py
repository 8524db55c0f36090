"""Running one endpoint in a test, step by step: nothing happens by itself, so nothing has to be waited for."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeVar, cast, overload

from onceonly.adapters.memory.transport import PLACE, MemoryTransport
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.algorithms.delivery import BatchReport, deliver
from onceonly.algorithms.effects import RegisteredEffects
from onceonly.assembly import open_dead_letters
from onceonly.assembly.blobs import open_blobs
from onceonly.assembly.token_issuer import open_token_issuer, with_token
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.bodies import codec_for, encode_body, type_name
from onceonly.formats.cloudevents import encode
from onceonly.formats.entities import entity_name, unit_of
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.entities import Entities
from onceonly.model.errors import SetupError
from onceonly.model.message import Headers, Message, Send
from onceonly.model.token import Token
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.environment import Environment
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observed import observed
from onceonly.testing.environment import CountedIdGenerator, FixedRandomSource, RunClock
from onceonly.testing.peers import Posted, SimulatedPeers
from onceonly.testing.sent import Sent, collect
from onceonly.testing.wire import Tape, TapedTransport, drop_holders, put

BATCH = 100
PATIENCE = 200
"""Batches without an end in sight before a test is told that its messages never settle."""

_Resource = TypeVar("_Resource")
_Entity = TypeVar("_Entity")
Connect = Callable[[Environment], AbstractAsyncContextManager[Ports]]
"""Opens what one process of the endpoint has open: its store, its resources. Closed and opened again after a crash."""


class EndpointRun:
    """One endpoint under test. Only `deliver` and `settle` make anything happen; both return when nothing is left to do now.

    The endpoint's own transactions work as well, on the store of the test: what they send is in `sent` when they have ended.
    `clock` stands still until it is advanced. `crashes` counts how often the process died. `dead_letters` are those there
    were when the last `deliver` or `settle` returned.
    """

    def __init__(self, endpoint: Endpoint, connect: Connect, settings: Settings) -> None:
        self.clock = RunClock()
        self.crashes = 0
        self.dead_letters: tuple[DeadLetter, ...] = ()
        self._endpoint = endpoint
        self._connect = connect
        self._settings = settings
        self._issued: set[str] = set()
        self._surroundings = Environment(clock=self.clock, chance=FixedRandomSource())
        self._broker = Live()
        self._tape = Tape()
        self._peers = SimulatedPeers(settings.all_peers)
        self._ids = CountedIdGenerator()
        self._open = AsyncExitStack()
        self._ports: Ports

    @property
    def sent(self) -> list[Sent]:
        """What the endpoint put on the wire, each message once however often it was sent; equal to the bodies themselves."""
        return collect(self._tape.raw)

    @property
    def raw(self) -> tuple[Send, ...]:
        """Every send, copies included: after a crash a message may be sent again, with the same id."""
        return self._tape.raw

    @property
    def posted(self) -> list[Posted]:
        """What other services have executed for the endpoint, in order: each request of a committed handler, once."""
        return list(self._peers.posted)

    @property
    def store(self) -> Any:
        """The endpoint's store itself, as the process has it open now."""
        return self._ports.store

    def message(self, body: object, *, id: str = "", source: str = "kit", type: str = "", **extensions: str) -> Message:  # noqa: A002 - the CloudEvents names
        """Make a message with everything but its body chosen; `id` is a fresh one unless given."""
        encoded, content_type = encode_body(body)
        return Message(
            id=id or self._ids.new_id(),
            source=source,
            type=type or type_name(body.__class__) or "",
            body=encoded,
            datacontenttype=content_type,
            extensions=tuple(extensions.items()),
        )

    def answer(self, url: str, answer: object = None) -> None:
        """Say what another service answers, from now on, to what handlers post to this URL; nothing is sent anywhere.

        The answer is what a responder would return: an object that a body may be (200), None (204), or a `Response`; or a
        function that makes it of what is `Posted`, and may raise `Reject` (422). What follows a request up is handled at
        once, and is in `sent` as well. A handler that asks what no test has answered ends the test with AssertionError.
        Raises ValueError for a URL at none of the endpoint's peers, and for what no responder may return.
        """
        self._peers.answer(url, answer)

    async def deliver(
        self,
        body: object,
        *,
        id: str = "",  # noqa: A002 - the CloudEvents name
        copies: int = 1,
        crash_at: str | None = None,
        together: bool = False,
    ) -> BatchReport:
        """Deliver a message, `copies` times, and settle; `body` is a body or a whole `Message`.

        The copies come one after another, each when the one before it is settled, or all in one batch if `together`. At
        the crash point `crash_at` (one of `testing.CRASH_POINTS`) the process dies, once: its connections are gone, it starts
        again, and what it held comes again. A point that is not on this message's way does nothing. The report counts
        deliveries as the last process saw them. Where messages need a token, one that comes without gets one of its own, once
        in a run: a later copy of it finds that token consumed. Raises SetupError for a crash point that does not exist.
        """
        message = body if isinstance(body, Message) else self.message(body, id=id)
        headers, encoded = encode(Send(message=await self._with_live_token(message), to=self._endpoint.name))
        return await self.deliver_raw(headers, encoded, copies=copies, crash_at=crash_at, together=together)

    async def deliver_raw(
        self, headers: Headers, body: bytes, *, copies: int = 1, crash_at: str | None = None, together: bool = False
    ) -> BatchReport:
        """Deliver these very headers and bytes, readable or not; otherwise as `deliver`."""
        if copies < 1:
            raise ValueError(f"copies must be 1 or more, not {copies}")
        trap = CrashAt(crash_at) if crash_at is not None else None
        report = BatchReport()
        for last in (False,) * (copies - 1) + (True,):
            self._broker.at_once(PortOperation("put", PLACE, put, (self._endpoint.name, headers, body)))
            if last or not together:
                report += await self._settle(trap)
        return report

    async def settle(self, *, crash_at: str | None = None) -> BatchReport:
        """Handle whatever is due now: after the clock was advanced, delayed retries and delayed messages."""
        return await self._settle(CrashAt(crash_at) if crash_at is not None else None)

    async def restart(self) -> None:
        """Let the process die and start again, between two messages."""
        await self.stop()
        self._broker.at_once(PortOperation("drop-holders", PLACE, drop_holders, ()))
        await self.start()

    async def start(self) -> None:
        """Open everything; `run` has done so."""
        ports = await self._open.enter_async_context(self._connect(self._surroundings))
        inner = MemoryTransport(self._broker, self._endpoint.name, clock=self.clock)
        self._ports = ports._replace(transport=TapedTransport(inner, self._endpoint.name, self._tape))
        if self._settings.peers and isinstance(ports.effects, RegisteredEffects):
            self._ports = self._ports._replace(effects=ports.effects.asking(self._peers))
        self._open.enter_context(host_of(self._endpoint).bind(self._ports, environment=self._surroundings))
        await self._ports.transport.declare([self._endpoint.topology()])

    async def stop(self) -> None:
        """Close everything; `run` does so at its end."""
        await self._open.aclose()

    @overload
    def session(self) -> AbstractAsyncContextManager[Any]: ...
    @overload
    def session(self, kind: type[_Resource]) -> AbstractAsyncContextManager[_Resource]: ...
    @asynccontextmanager
    async def session(self, kind: type[Any] | None = None) -> AsyncIterator[Any]:
        """Look into the endpoint's store, or prepare what a test needs there: committed when the block ends well.

        Gives what handlers get as their session, an `AsyncSession` on SQL stores; `kind` names another of the store's
        resources. Nothing can be delivered inside the block. Raises SetupError where the store has none: see `entity`.
        """
        if self._ports.store.unit_key(_probe()):
            raise SetupError("this store keeps documents and has no sessions; look at an entity with t.entity(Account, key)")
        unit = await self._ports.store.begin([])
        try:
            yield unit.resources.get(kind or _session_kind(self._settings.store))
            await unit.commit([])
        except BaseException:
            unit.abandon()
            raise

    async def entity(self, kind: type[_Entity], key: object) -> _Entity | None:
        """Give an entity as the store has it now, by its class and its key; None when there is none.

        Raises BodyError for what can be no key, and when its state is of another class.
        """
        probe = await self._with_live_token(_probe(unit_of(entity_name(kind), key)))
        unit = await self._ports.store.begin([probe])
        try:
            state = cast("Entities", unit.resources.get(Entities)).read(probe.unit)
        finally:  # awaits nothing; the probe, and its token, were never there
            unit.abandon()
        found: _Entity | None = None if state is None else codec_for(kind).decode(state)
        return found

    async def blobs(self) -> dict[str, bytes]:
        """Give all blobs that there are now, by the names they got; none where the endpoint has no place for them."""
        if self._settings.blobs is None:
            return {}
        async with open_blobs(self._settings.blobs) as artifacts:
            return {name: data for name in await artifacts.names() if (data := await artifacts.read(name)) is not None}

    async def _with_live_token(self, message: Message) -> Message:
        if self._settings.plan.tokens is None:
            return message
        message = with_token(message)
        if message.token not in self._issued:
            self._issued.add(message.token)
            async with open_token_issuer(self._settings, environment=self._surroundings) as issue:
                await issue.add([Token(message.token, self._endpoint.name)])
        return message

    async def _settle(self, trap: CrashAt | None) -> BatchReport:
        report = BatchReport()
        for _ in range(PATIENCE):
            ports = observed(self._ports, trap)
            try:
                batch = await ports.transport.receive(BATCH, 0)
                if not batch:
                    break
                report += await deliver(batch, ports)
            except ProcessCrash:
                self.crashes += 1
                await self.restart()
        else:
            raise AssertionError(
                f"not settled after {PATIENCE} batches: {report}; does a handler always ask to be retried at once?"
            )
        self.dead_letters = await self._ports.dead_letters.page(Filter(endpoint=self._endpoint.name), limit=10_000)
        return report


@asynccontextmanager
async def run(endpoint: Endpoint, *, own_store: bool = False, directory: Path | None = None) -> AsyncIterator[EndpointRun]:
    """Run an endpoint for a test, on a fresh SQLite file and a queue in memory; everything is gone at the end.

    An endpoint whose own store is `memory://`, or keeps documents, gets a fresh one in memory. So do its dedup store, its
    tokens, unless they are in its SQL database, and its blobs. `own_store` keeps the endpoint's own ones, and what is in
    them. Its peers are never asked: see `EndpointRun.answer`. `directory` is where the file is put, and left.

    Raises SetupError, as the start of the endpoint does.
    """
    with TemporaryDirectory(prefix="onceonly-") as own:
        folder = Path(own) if directory is None else Path(mkdtemp(prefix="onceonly-", dir=directory))
        settings = _settings(endpoint, folder, own_store=own_store)
        async with AsyncExitStack() as stack:
            for place in _places(settings):
                if place is not None and place.in_process:  # a world in memory ends with its last user
                    await stack.enter_async_context(open_dead_letters(place))  # and these outlive every crash

            def connect(environment: Environment) -> AbstractAsyncContextManager[Ports]:
                return endpoint.opened(settings=settings, environment=environment)

            t = EndpointRun(endpoint, connect, settings)
            stack.push_async_callback(t.stop)
            await t.start()
            yield t


def _settings(endpoint: Endpoint, folder: Path, *, own_store: bool) -> Settings:
    own, transport = endpoint.settings, "memory://onceonly-kit"
    if own_store:
        return replace(own, transport=transport, dead_letters=None)
    memory = f"memory://{folder.name}"
    fresh = f"sqlite:///{folder}/store.db" if own.places.store.is_sql else memory
    chosen: Any = own.deduplication
    if own.plan.marks is not None:
        chosen = replace(chosen, url=f"{memory}-done")
    elif own.plan.tokens is not None:
        chosen = replace(chosen, url="" if own.plan.tokens_in_store else f"{memory}-tokens")
    blobs = None if own.blobs is None else f"{memory}-blobs"
    return replace(own, store=fresh, transport=transport, dead_letters=None, deduplication=chosen, blobs=blobs)


def _places(settings: Settings) -> tuple[Location | None, ...]:
    return settings.places.store, settings.plan.marks, settings.plan.tokens, settings.places.blobs


def _probe(unit: str = "") -> Message:
    """Make a message that is never delivered, to look into the store with."""
    return Message(id="look", source="kit", type="", body=b"", unit=unit)


def _session_kind(store: object) -> type[Any]:
    """Give the type that handlers ask this store for, first of all; imported here only, so that the kit needs no driver."""
    name = next(iter(sorted(locate(store, "store").offer.asynchronous, key=lambda name: "Session" not in name)))
    module, _, attribute = name.rpartition(".")
    kind: type[Any] = getattr(import_module(module), attribute)
    return kind
