"""Run one endpoint in a test, step by step. Nothing runs in the background, so a test never has to wait."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar, cast, overload
from unittest import SkipTest

import msgspec

from onceonly.adapters.memory.transport import PLACE, MemoryTransport
from onceonly.adapters.memory.world import Live, PortOperation
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import RegisteredEffects
from onceonly.algorithms.settlement import BatchReport
from onceonly.algorithms.third_party import CallingEffects
from onceonly.assembly import open_dead_letters
from onceonly.assembly.deduplication import open_token_issuer, with_token
from onceonly.assembly.effects import open_blobs, open_projection
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.documents.projection_effects import ProjectionEffects
from onceonly.documents.store import ENTITY, DocumentStore
from onceonly.endpoint import Endpoint
from onceonly.endpoint.documents import DocumentKey, document_address
from onceonly.endpoint.handlers import EndpointHandlers
from onceonly.endpoint.host import host_of
from onceonly.formats.bodies import codec_for, encode_body, type_name
from onceonly.formats.cloudevents import encode
from onceonly.formats.entities import entity_name, unit_of
from onceonly.formats.partitions import partition_text
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.entities import Entities
from onceonly.model.errors import SetupError
from onceonly.model.message import Headers, Message, Send
from onceonly.model.token import Token
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.effects import Effects
from onceonly.runtime.environment import Environment, temporary_directory
from onceonly.runtime.observe.crash import CrashAt, EveryCrashPoint, ProcessCrash
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observers
from onceonly.testing.environment import (
    CountedIdGenerator,
    FixedRandomSource,
    RunClock,
    Tape,
    TapedTransport,
    drop_holders,
    put,
)
from onceonly.testing.failures import FailureRecorder, HandlerFailure
from onceonly.testing.peers import Posted, SimulatedPeers
from onceonly.testing.sent import Sent, collect

BATCH = 100
PATIENCE = 200
"""The number of batches after which messages that are still not settled fail the test."""

_Resource = TypeVar("_Resource")
_Entity = TypeVar("_Entity")
Connect = Callable[[Environment], AbstractAsyncContextManager[Ports]]
"""Opens what one process of the endpoint has open: its store, its resources. Closed and opened again after a crash."""


class EndpointRun:
    """One endpoint under test. Only `deliver` and `settle` handle messages. Both return when nothing is left to do now.

    The endpoint's own transactions use the store of the test. What they send is in `sent` after they have ended. `clock`
    stands still until the test advances it. `crashes` is the number of times the process died. `dead_letters` are those at
    the end of the last `deliver` or `settle`.

    `deliver` and `settle` raise what a handler raised, when everything else is done: the first failure, if there are several.
    They do not raise `Reject` and `RetryLater`, which are decisions of a handler, nor what makes a message a dead letter before
    its handler runs. `run(endpoint, raise_failures=False)` turns this off, for tests of retries; see `failures`.
    """

    def __init__(self, endpoint: Endpoint, connect: Connect, settings: Settings, *, raise_failures: bool = True) -> None:
        self.clock = RunClock()
        self.crashes = 0
        self.dead_letters: tuple[DeadLetter, ...] = ()
        self._endpoint = endpoint
        self._connect = connect
        self._settings = settings
        self._raise_failures = raise_failures
        self._recorder = FailureRecorder(self._handler_of)
        self._unreached: dict[str, bool] = {}
        self._issued: set[str] = set()
        self._environment = Environment(clock=self.clock, random=FixedRandomSource())
        self._broker = Live()
        self._tape = Tape()
        self._peers = SimulatedPeers(settings.all_peers)
        self._ids = CountedIdGenerator()
        self._open = AsyncExitStack()
        self._ports: Ports

    @property
    def sent(self) -> list[Sent]:
        """The messages that the endpoint sent, each once, however often it was sent. They are equal to their bodies."""
        return collect(self._tape.raw)

    @property
    def raw(self) -> tuple[Send, ...]:
        """Every send, including copies. After a crash, a message may be sent again with the same id."""
        return self._tape.raw

    @property
    def failures(self) -> list[HandlerFailure]:
        """What handlers raised in this run, also what `deliver` has raised: one item for each attempt, in order."""
        return list(self._recorder.failures)

    @property
    def posted(self) -> list[Posted]:
        """The requests of committed handlers that other services have executed, in order, each once."""
        return list(self._peers.posted)

    @property
    def store(self) -> Any:
        """The endpoint's store, as the process has it open now."""
        return self._ports.store

    def message(
        self,
        body: object,
        *,
        id: str = "",  # noqa: A002 - the CloudEvents name
        source: str = "kit",
        type: str = "",  # noqa: A002 - the CloudEvents name
        headers: Mapping[str, str] | None = None,
        **extensions: str,
    ) -> Message:
        """Return a message with this body and default attributes. `id` is new unless given."""
        encoded, content_type = encode_body(body)
        return Message(
            id=id or self._ids.new_id(),
            source=source,
            type=type or type_name(body.__class__) or "",
            body=encoded,
            datacontenttype=content_type,
            extensions=tuple(extensions.items()),
            headers=tuple((headers or {}).items()),
        )

    def answer(self, url: str, answer: object = None) -> None:
        """Set the answer of another service to requests that handlers post to this URL. Nothing is sent to the network.

        The answer is what a responder would return: an object that a body may be (200), None (204), or a `Response`. It may
        also be a function of the `Posted` request that returns such an answer or raises `Reject` (422). Messages that
        continue a request are handled at once, and are in `sent` as well. A request to a URL without an answer ends the test
        with AssertionError.

        Raises ValueError for a URL that belongs to none of the endpoint's peers, and for an answer that a responder must not
        return.
        """
        self._peers.answer(url, answer)

    async def deliver(
        self,
        body: object,
        *,
        id: str = "",  # noqa: A002 - the CloudEvents name
        copies: int = 1,
        crash_at: str | None = None,
        must_crash: bool = True,
        together: bool = False,
    ) -> BatchReport:
        """Deliver a message `copies` times, and settle. `body` is a body or a complete `Message`.

        Each copy is delivered after the one before is settled, or all copies in one batch if `together` is true. At the crash
        point `crash_at` (one of `testing.CRASH_POINTS`) the process dies once. It loses its connections, starts again, and
        receives again the deliveries that it held. Raises AssertionError if the crash point was not reached, unless
        `must_crash` is false. A test with the fixture `onceonly_crash_point` is skipped instead, at the end of `run`.

        Raises what a handler raised, when everything is settled. The report counts deliveries as the last process saw them.

        If messages need a token, a message without one receives one token for the whole run. A later copy of it finds that
        token consumed. So does a copy of what the endpoint sent in this run. Raises SetupError for an unknown crash point.
        """
        message = body if isinstance(body, Message) else self.message(body, id=id)
        headers, encoded = encode(Send(message=await self._with_live_token(message), to=self._endpoint.name))
        return await self.deliver_raw(
            headers, encoded, copies=copies, crash_at=crash_at, must_crash=must_crash, together=together
        )

    async def deliver_batch(
        self, bodies: Sequence[object], *, crash_at: str | None = None, must_crash: bool = True
    ) -> BatchReport:
        """Deliver several messages in one batch, such as to a handler with `batch=True`, and settle. Otherwise like `deliver`.

        Each of `bodies` is a body or a complete `Message`. One batch has at most 100 messages.
        """
        if not 1 <= len(bodies) <= BATCH:
            raise ValueError(f"a batch has 1 to {BATCH} messages, not {len(bodies)}")
        messages = [body if isinstance(body, Message) else self.message(body) for body in bodies]
        for message in messages:
            headers, encoded = encode(Send(message=await self._with_live_token(message), to=self._endpoint.name))
            self._broker.at_once(PortOperation("put", PLACE, put, (self._endpoint.name, headers, encoded)))
        return await self.settle(crash_at=crash_at, must_crash=must_crash)

    async def deliver_raw(
        self,
        headers: Headers,
        body: bytes,
        *,
        copies: int = 1,
        crash_at: str | None = None,
        must_crash: bool = True,
        together: bool = False,
    ) -> BatchReport:
        """Deliver exactly these headers and bytes, readable or not. Otherwise like `deliver`."""
        if copies < 1:
            raise ValueError(f"copies must be 1 or more, not {copies}")
        trap, failed = _trap(crash_at), len(self._recorder.failures)
        report = BatchReport()
        for last in (False,) * (copies - 1) + (True,):
            self._broker.at_once(PortOperation("put", PLACE, put, (self._endpoint.name, headers, body)))
            if last or not together:
                report += await self._settle(trap)
        self._raise(failed)
        self._check_crash(crash_at, trap, must_crash=must_crash)
        return report

    async def settle(self, *, crash_at: str | None = None, must_crash: bool = True) -> BatchReport:
        """Handle everything that is due now, such as delayed messages and retries after the clock was advanced.

        Raises what handlers raised, and AssertionError at a crash point, as `deliver` does.
        """
        trap, failed = _trap(crash_at), len(self._recorder.failures)
        report = await self._settle(trap)
        self._raise(failed)
        self._check_crash(crash_at, trap, must_crash=must_crash)
        return report

    async def restart(self) -> None:
        """Stop the process and start it again, between two messages."""
        await self.stop()
        self._broker.at_once(PortOperation("drop-holders", PLACE, drop_holders, ()))
        await self.start()

    async def start(self) -> None:
        """Open everything. `run` calls it."""
        ports = await self._open.enter_async_context(self._connect(self._environment))
        inner = MemoryTransport(self._broker, self._endpoint.name, clock=self.clock)
        self._ports = ports._replace(transport=TapedTransport(inner, self._endpoint.name, self._tape))
        self._ports = self._ports._replace(effects=self._with_simulated_peers(ports.effects))
        self._open.enter_context(host_of(self._endpoint).bind(self._ports, environment=self._environment))
        await self._ports.transport.declare([self._endpoint.topology()])

    def _with_simulated_peers(self, effects: Effects) -> Effects:
        if isinstance(effects, ProjectionEffects):
            return effects.with_inner(self._with_simulated_peers(effects.inner))
        if isinstance(effects, CallingEffects):
            return CallingEffects(self._with_simulated_peers(effects.inner), self._peers, clock=self.clock)
        if isinstance(effects, RegisteredEffects) and self._settings.protocol_peers:
            return effects.with_peers(self._peers)
        return effects

    async def stop(self) -> None:
        """Close everything. `run` calls it at the end."""
        await self._open.aclose()

    @overload
    def session(self) -> AbstractAsyncContextManager[Any]: ...
    @overload
    def session(self, kind: type[_Resource]) -> AbstractAsyncContextManager[_Resource]: ...
    @asynccontextmanager
    async def session(self, kind: type[Any] | None = None) -> AsyncIterator[Any]:
        """Open a session on the endpoint's store, to check or prepare data.

        It is committed when the block ends without an error.

        Returns what handlers get as their session, an `AsyncSession` on SQL stores. `kind` selects another resource of the
        store. Nothing can be delivered inside the block. Raises SetupError for a store without sessions: see `entity`.
        """
        if self._ports.store.unit_key(_probe()):
            raise SetupError("this store stores documents and has no sessions: read an entity with t.entity(Account, key)")
        unit = await self._ports.store.begin([])
        try:
            yield unit.resources.get(kind or _session_kind(self._settings.store))
            await unit.commit([])
        except BaseException:
            unit.abandon()
            raise

    async def entity(self, kind: type[_Entity], key: object, *, partition: Sequence[object] = ()) -> _Entity | None:
        """Return an entity in its current state in the store, by its class and key, or None.

        `partition` has the values of the `partition_key=` of its handler, if that has one. Raises BodyError for an invalid key
        or partition, and for a state of another class.
        """
        place = partition_text(partition) if partition else ""
        probe = await self._with_live_token(_probe(place + unit_of(entity_name(kind), key)))
        unit = await self._ports.store.begin([probe])
        try:
            state = cast("Entities", unit.resources.get(Entities)).read(probe.unit)
        finally:  # awaits nothing; the probe, and its token, were never there
            unit.abandon()
        found: _Entity | None = None if state is None else codec_for(kind).decode(state)
        return found

    @overload
    async def document(
        self, key: DocumentKey, *, collection: str = ..., partition: Sequence[object] = ...
    ) -> dict[str, Any] | None: ...
    @overload
    async def document(
        self, key: DocumentKey, kind: type[_Entity], *, collection: str = ..., partition: Sequence[object] = ...
    ) -> _Entity | None: ...
    async def document(
        self, key: DocumentKey, kind: type[Any] = dict, *, collection: str = "", partition: Sequence[object] = ()
    ) -> Any:
        """Return a document of the application in its current state in the store, or None. See `context.documents.get`.

        `partition` has the values of the `partition_key=` of the handler, where the service has partitions. Raises BodyError
        for a document of another class, and SetupError for a store without such documents.
        """
        store, address = self._ports.store, document_address(key, collection)
        if not isinstance(store, DocumentStore) or store.together is None:
            raise SetupError("this store does not write documents of the application")
        beside = f"{ENTITY}{partition_text(partition) if partition else ''}kit/look"
        found = (await store.together.read(beside, [address])).get(address)
        return None if found is None else codec_for(kind).decode(found.body)

    async def blobs(self) -> dict[str, bytes]:
        """Return all blobs by their names. Empty if the endpoint has no blob store."""
        if self._settings.blobs is None:
            return {}
        async with open_blobs(self._settings.blobs) as artifacts:
            return {name: data for name in await artifacts.names() if (data := await artifacts.read(name)) is not None}

    async def projection(self, name: str) -> dict[str, bytes]:
        """Return the values of a projection by their keys, without those that were deleted.

        Raises SetupError for a projection that the endpoint does not have.
        """
        async with open_projection(self._settings, name, environment=self._environment) as projection:
            found = {key: await projection.get(key) for key in await projection.names()}
        return {key: value.body for key, value in found.items() if value is not None}

    async def _with_live_token(self, message: Message) -> Message:
        if self._settings.plan.tokens is None:
            return message
        message = with_token(message)
        issued_by_endpoint = any(send.message.token == message.token for send in self._tape.raw)
        if message.token not in self._issued and not issued_by_endpoint:
            self._issued.add(message.token)
            async with open_token_issuer(self._settings, environment=self._environment) as issue:
                await issue.add([Token(message.token, self._endpoint.name)])
        return message

    async def _settle(self, trap: CrashAt | None) -> BatchReport:
        report = BatchReport()
        for _ in range(PATIENCE):
            ports = observed(self._ports, self._recorder if trap is None else Observers(trap, self._recorder))
            try:
                batch = await ports.transport.receive(BATCH, 0)
                if not batch:
                    break
                report += await deliver(batch, ports)
            except ProcessCrash:
                self.crashes += 1
                await self.restart()
        else:
            cause = self._recorder.failures[-1].exception if self._recorder.failures else None
            raise AssertionError(
                f"not settled after {PATIENCE} batches: {report}. Check for a handler that always asks for an immediate retry"
            ) from cause
        self.dead_letters = await self._ports.dead_letters.page(Filter(endpoint=self._endpoint.name), limit=10_000)
        return report

    def _handler_of(self, message: Message) -> str:
        handlers = self._ports.handlers
        return handlers.path_of(message) if isinstance(handlers, EndpointHandlers) else ""

    def _raise(self, known: int) -> None:
        """Raise the first failure after the `known` ones. A note says which message it was."""
        new = self._recorder.failures[known:]
        if not new or not self._raise_failures:
            return
        first = new[0]
        others = f" It is the first of {len(new)} failures: see t.failures." if len(new) > 1 else ""
        first.exception.add_note(
            f"Raised by handler {first.handler} for message {first.message.type} {first.message.id}.{others} "
            "If the test expects failures, use run(..., raise_failures=False)."
        )
        raise first.exception

    def _check_crash(self, point: str | None, trap: CrashAt | None, *, must_crash: bool) -> None:
        if point is None or trap is None or not must_crash:
            return
        if isinstance(point, EveryCrashPoint):
            self._unreached[point] = self._unreached.get(point, True) and not trap.crashed
        elif not trap.crashed:
            reached = ", ".join(trap.reached) or "none"
            raise AssertionError(
                f"crash point {point!r} was not reached. Reached: {reached}. Choose one of these, or pass must_crash=False. "
                "A test with the fixture onceonly_crash_point is skipped at points that it does not reach."
            )

    def _skip_unreached(self) -> None:
        """Skip the test at a crash point of the fixture that no message has reached, so that it does not count as passed."""
        unreached = [point for point, is_unreached in self._unreached.items() if is_unreached]
        if unreached:
            raise SkipTest(f"crash point {unreached[0]} was not reached")


@asynccontextmanager
async def run(
    endpoint: Endpoint, *, own_store: bool = False, directory: Path | None = None, raise_failures: bool = True
) -> AsyncIterator[EndpointRun]:
    """Run an endpoint for a test, with a new SQLite file and a queue in memory. Everything is deleted at the end.

    An endpoint whose own store is `memory://` or keeps documents has a new store in memory. The same holds for its dedup
    store, its blobs, its projections, and its tokens unless they are in its SQL database. With `own_store` the endpoint uses
    its own stores and their data, as an endpoint of Django always does. No request is sent to its peers: see
    `EndpointRun.answer`. `directory` is where the file is created. It is kept there at the end. `raise_failures` is whether
    `deliver` and `settle` raise what a handler raised.

    Raises SetupError for the same reasons as the start of the endpoint.
    """
    with temporary_directory("onceonly-", "the files of a test") as own:
        folder = Path(own) if directory is None else Path(mkdtemp(prefix="onceonly-", dir=directory))
        settings = _settings(endpoint, folder, own_store=own_store or host_of(endpoint).has_own_units)
        async with AsyncExitStack() as stack:
            for place in _places(settings):
                if place is not None and not place.is_shared:  # a world in memory ends with its last user
                    await stack.enter_async_context(open_dead_letters(place))  # and these outlive every crash

            def connect(environment: Environment) -> AbstractAsyncContextManager[Ports]:
                return host_of(endpoint).opened(settings=settings, environment=environment)

            t = EndpointRun(endpoint, connect, settings, raise_failures=raise_failures)
            stack.push_async_callback(t.stop)
            await t.start()
            yield t
        t._skip_unreached()  # noqa: SLF001 - its own end


def _trap(crash_at: str | None) -> CrashAt | None:
    return None if crash_at is None else CrashAt(crash_at)


def _settings(endpoint: Endpoint, folder: Path, *, own_store: bool) -> Settings:
    settings, transport = endpoint.settings, "memory://onceonly-kit"
    worker = msgspec.structs.replace(settings.worker, def_handlers="loop")  # one thing after another
    own = replace(settings, worker=worker, telemetry=None, unknown_types_wait=0.0)  # no other process can take a message
    if own_store:
        own = replace(own, transport=transport, dead_letters=None, events=None)
        return own.with_destinations_of(settings)
    memory = f"memory://{folder.name}"
    fresh = f"sqlite:///{folder}/store.db" if own.store_plan.has_tables else memory
    chosen: Any = own.deduplication
    if own.plan.marks is not None:
        chosen = replace(chosen, url=f"{memory}-done")
    elif own.plan.tokens is not None:
        chosen = replace(chosen, url="" if own.plan.tokens_in_store else f"{memory}-tokens")
    blobs = None if own.blobs is None else f"{memory}-blobs"
    projections = None if own.projections is None else dict.fromkeys(own.projections, f"{memory}-projections")
    own = replace(own, store=fresh, transport=transport, dead_letters=None, deduplication=chosen, blobs=blobs, events=None)
    own = replace(own, projections=projections)
    return own.with_destinations_of(settings)


def _places(settings: Settings) -> tuple[Location | None, ...]:
    places, plan = settings.places, settings.plan
    return places.store, plan.marks, plan.tokens, places.blobs, *places.projections.values()


def _probe(unit: str = "") -> Message:
    """Return a message for reading the store. It is never delivered."""
    return Message(id="look", source="kit", type="", body=b"", unit=unit)


def _session_kind(store: object) -> type[Any]:
    """Return the type that handlers ask this store for, first of all; imported here only, so that the kit needs no driver."""
    name = next(iter(sorted(locate(store, "store").offer.asynchronous, key=lambda name: "Session" not in name)))
    module, _, attribute = name.rpartition(".")
    kind: type[Any] = getattr(import_module(module), attribute)
    return kind
