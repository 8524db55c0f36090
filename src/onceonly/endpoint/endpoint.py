"""Endpoint: a named consumer with one input queue, its handlers, and its own deduplication scope."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any, TypeVar, overload

from onceonly.assembly import enlist, wire
from onceonly.config.deduplication import ControlMessages, Deduplication, History
from onceonly.config.endpoint import MAX_COMMIT, Settings
from onceonly.config.worker import WorkerSettings
from onceonly.endpoint.blobs import BlobPlace
from onceonly.endpoint.entities import KeyRule
from onceonly.endpoint.handlers import EndpointHandlers, Rules
from onceonly.endpoint.outgoing import Outgoing
from onceonly.endpoint.plans import Plans, plan
from onceonly.endpoint.registration import RegisteredHandler, RegisteredProvider
from onceonly.endpoint.responding import Responding
from onceonly.endpoint.signatures import Function, callers_frame, is_function
from onceonly.endpoint.transacting import MAX_BODY, Running, Transacting
from onceonly.formats.identity import IdentityRule
from onceonly.model.errors import InvalidHandler
from onceonly.model.peer import Peer
from onceonly.model.retry import Retry
from onceonly.ports.bundle import Ports
from onceonly.ports.effects import Things
from onceonly.ports.transport import Topology, Traits
from onceonly.runtime.background import Background, beside
from onceonly.runtime.environment import LIVE, Surroundings
from onceonly.runtime.maintenance.drops import CountedWorker
from onceonly.runtime.maintenance.janitor import Janitor
from onceonly.runtime.observe.observer import Observer
from onceonly.runtime.processes.board import Row
from onceonly.runtime.processes.doorbell import Doorbell
from onceonly.runtime.relay.relay import Relay
from onceonly.runtime.worker.start import Patience
from onceonly.runtime.worker.worker import Runner, Worker, run_all

_Function = TypeVar("_Function", bound=Callable[..., Any])
Lifespan = Callable[["Endpoint"], AbstractAsyncContextManager[object]]


class Endpoint(Responding, Transacting):
    """Handlers whose effects happen exactly once; see `Settings` for what the arguments mean.

    `lifespan` is an async context manager factory, called with the endpoint: entered before the providers and the worker
    start, left after they stopped. Raises SetupError that lists everything that is wrong with the settings.
    """

    def __init__(  # noqa: PLR0913 - one place names all settings of an endpoint
        self,
        name: str,
        *,
        store: object,
        transport: str,
        metadata: object = None,
        isolation: str | None = None,
        deduplication: Deduplication = History(),  # noqa: B008 - immutable
        blobs: str | None = None,
        peers: Sequence[Peer | str] = (),
        identity: IdentityRule | None = None,
        retry: Retry = Retry(),  # noqa: B008 - immutable
        timeout: float = 30.0,
        relay_after: float = 10.0,
        max_commit: timedelta = MAX_COMMIT,
        manual_retry: timedelta = timedelta(),
        janitor: bool = True,
        janitor_interval: timedelta | None = None,
        health: str | None = None,
        control: ControlMessages = ControlMessages(),  # noqa: B008 - immutable
        lifespan: Lifespan | None = None,
        dead_letters: object = None,
        worker: WorkerSettings = WorkerSettings(),  # noqa: B008 - immutable
    ) -> None:
        self.settings = Settings(
            name=name,
            store=store,
            transport=transport,
            metadata=metadata,
            isolation=isolation,
            deduplication=deduplication,
            blobs=blobs,
            peers=peers,
            identity=identity,
            retry=retry,
            timeout=timeout,
            relay_after=relay_after,
            max_commit=max_commit,
            manual_retry=manual_retry,
            janitor=janitor,
            janitor_interval=janitor_interval,
            health=health,
            control=control,
            dead_letters=dead_letters,
            worker=worker,
        )
        self._lifespan = lifespan
        self._handlers: list[RegisteredHandler] = []
        self._responders: list[RegisteredHandler] = []
        self._providers: list[RegisteredProvider] = []
        self._doorbell = Doorbell()
        self._running: list[Running] = []

    def __repr__(self) -> str:
        return f"<Endpoint {self.name}>"

    @property
    def name(self) -> str:
        """The endpoint's name, which is also its input queue's."""
        return self.settings.name

    @overload
    def handler(self, function: _Function, /) -> _Function: ...
    @overload
    def handler(
        self, *, type: str | None = ..., retry: Retry | None = ..., timeout: float | None = ...
    ) -> Callable[[_Function], _Function]: ...
    @overload
    def handler(
        self,
        *,
        entity: type[Any],
        key: KeyRule,
        type: str | None = ...,
        retry: Retry | None = ...,
        timeout: float | None = ...,
    ) -> Callable[[_Function], _Function]: ...
    def handler(
        self,
        function: Any = None,
        *,
        type: str | None = None,  # noqa: A002 - the CloudEvents name
        retry: Retry | None = None,
        timeout: float | None = None,
        entity: Any = None,
        key: Any = None,
    ) -> Any:
        """Register a handler; usable with and without arguments. Gives the function back unchanged.

        The first parameter's class decides which messages it takes, `type` under which name they travel; the others are
        injected by annotation. `retry` and `timeout` (seconds, `async def` handlers only) override the endpoint's.

        With `entity` it works on one entity of that class for each message: the one whose key is in the message's field
        `key`, or what `key` makes of the message (a str, an int, a UUID or an enum of these). A parameter annotated
        `Account` gets it as the store has it, else a fresh one: all defaults, and the key in the field of that name if there
        is one. Annotated `Account | None` it gets None instead. It is changed in place, or another one is returned, or
        `Deleted()`.
        Raises InvalidHandler for what is no function; all else about it is judged at start.
        """
        frame = callers_frame()

        def register(function: _Function) -> _Function:
            self._handlers.append(RegisteredHandler(self._function(function, frame), type, retry, timeout, entity, key))
            return function

        return register if function is None else register(function)

    @overload
    def provide(self, factory: _Function, /) -> _Function: ...
    @overload
    def provide(self, *, scope: str = ...) -> Callable[[_Function], _Function]: ...
    def provide(self, factory: Any = None, *, scope: str = "process") -> Any:
        """Register a factory of what handlers ask for by its return annotation; gives it back unchanged.

        A function, a coroutine function, or a generator of either kind that yields once and cleans up afterwards. What it
        made lives from start to stop, or for one message with `scope="message"`; it may ask for what others make.
        """
        frame = callers_frame()

        def register(factory: _Function) -> _Function:
            self._providers.append(RegisteredProvider(self._function(factory, frame), scope))
            return factory

        return register if factory is None else register(factory)

    def enlist(self, session: object) -> Outgoing:
        """Send messages inside the open transaction of a SQLAlchemy `AsyncSession` or `Session` that the caller owns.

        They are committed and rolled back with it, by savepoint too. After the commit this endpoint dispatches them at once
        if it runs in this process; if not, the relay of any process where it runs does, `relay_after` later. A body may have
        256 KiB, where the endpoint runs what its transport takes. Raises SetupError: for a session of another database than
        the store, one that is in AUTOCOMMIT or belongs to a handler, and with a store that is no SQL database.
        """
        running = self._running[-1] if self._running else Running(self.settings, MAX_BODY, LIVE)
        enlisted = enlist(running.settings, session, self._doorbell.ring)
        return Outgoing(self.name, enlisted, max_body=running.max_body, clock=running.surroundings.clock)

    def topology(self) -> Topology:
        """Give the input queue and the types it subscribes to. Raises InvalidHandler."""
        return Topology(endpoint=self.name, events=tuple(sorted(self._plan(self.settings).handlers)))

    def works_on_entities(self) -> bool:
        """Tell whether any of its handlers does. Raises InvalidHandler."""
        return self._plan(self.settings).work_on_entities

    def operations(self) -> tuple[str, ...]:
        """Name what other services may have executed here. Raises InvalidHandler."""
        return tuple(sorted(self._plan(self.settings).responders))

    def handlers(
        self,
        surroundings: Surroundings = LIVE,
        *,
        settings: Settings | None = None,
        max_body: int = MAX_BODY,
        made: Mapping[Any, object] | None = None,
        blobs: Things | None = None,
    ) -> EndpointHandlers:
        """Give the Handlers port of this endpoint; `made` holds what process providers made. Raises InvalidHandler.

        `blobs` is the place they read blobs from.
        """
        chosen = settings or self.settings
        place = None if chosen.blobs is None else BlobPlace(blobs)
        plans, rules, peers = self._plan(chosen), _rules(chosen, max_body), chosen.all_peers
        return EndpointHandlers(plans, rules, surroundings, made or {}, blobs=place, peers=peers)

    @asynccontextmanager
    async def opened(
        self,
        *,
        settings: Settings | None = None,
        surroundings: Surroundings = LIVE,
        observer: Observer | None = None,
    ) -> AsyncIterator[Ports]:
        """Open everything but the worker: lifespan, providers, adapters. Gives the ports, enclosed by `observer`.

        `settings` override the endpoint's own. Raises InvalidHandler and other SetupErrors before anything is received, and
        TryAgain when a server is away.
        """
        chosen = settings or self.settings
        async with AsyncExitStack() as stack:
            wired = await self._prepared(stack, self._plan(chosen), chosen, surroundings, observer=observer)
            ports = await stack.enter_async_context(wired())
            stack.enter_context(self.lent(ports, settings=chosen, surroundings=surroundings))
            yield ports

    @asynccontextmanager
    async def opened_patiently(
        self,
        stop: asyncio.Event,
        *,
        settings: Settings | None = None,
        surroundings: Surroundings = LIVE,
        observer: Observer | None = None,
        away: asyncio.Event | None = None,
        sends: bool = False,
    ) -> AsyncIterator[Ports | None]:
        """Open as `opened` does, and wait for servers that are away, for ever; gives None when `stop` was set meanwhile.

        Lifespan and providers are opened once, before. Sets `away` when a server was found away. Who `sends` needs no handlers.
        """
        chosen = settings or self.settings
        patience = Patience(stop, endpoint=self.name, surroundings=surroundings, away=away, doorbell=self._doorbell)
        async with AsyncExitStack() as stack:
            wired = await self._prepared(stack, self._plan(chosen, sends=sends), chosen, surroundings, observer=observer)
            ports = await patience.enter(stack, wired)
            if ports is not None:
                stack.enter_context(self.lent(ports, settings=chosen, surroundings=surroundings))
            yield ports

    def runners(
        self, ports: Ports, settings: Settings, *, surroundings: Surroundings = LIVE, board: Row | None = None
    ) -> tuple[Runner, ...]:
        """Give what works on these ports, side by side: the worker, and those that finish or remove what others left."""
        grace, after, upkeep = settings.worker.grace, settings.relay_after, ports.upkeep
        self._use_board(ports, board)
        janitor = Janitor(ports, grace=grace, surroundings=surroundings) if upkeep.has_chores else None
        ask = janitor.ask if janitor is not None else lambda: None
        worker: Runner = (working := Worker(ports, settings.worker, surroundings=surroundings, board=board, ask=ask))
        if upkeep.drops is not None:
            in_store = upkeep.tokens is None
            worker = CountedWorker(working, upkeep.drops, endpoint=self.name, in_store=in_store, surroundings=surroundings)
        relay = Relay(ports, after=after, grace=grace, doorbell=self._doorbell, surroundings=surroundings)
        return worker, relay, *(() if janitor is None else (janitor,))

    async def run(
        self,
        stop: asyncio.Event,
        *,
        settings: Settings | None = None,
        surroundings: Surroundings = LIVE,
        observer: Observer | None = None,
        board: Row | None = None,
        ready: asyncio.Event | None = None,
    ) -> None:
        """Work until `stop` is set; then finish what is in flight and close everything. Raises SetupError.

        A server that is away at start is waited for. Sets `ready` once it is receiving, or has found that it has to wait.
        """
        chosen = settings or self.settings
        opening = self.opened_patiently(stop, settings=chosen, surroundings=surroundings, observer=observer, away=ready)
        async with opening as ports:
            if ports is None:
                return
            runners = self.runners(ports, chosen, surroundings=surroundings, board=board)
            if ready is not None:
                ready.set()
            await run_all(runners, stop)

    @asynccontextmanager
    async def running(
        self,
        *,
        settings: Settings | None = None,
        surroundings: Surroundings = LIVE,
        observer: Observer | None = None,
        board: Row | None = None,
    ) -> AsyncIterator[Background]:
        """Run the worker beside the block, such as in another application's lifespan; the exit stops it gracefully.

        A server that is away at start holds nobody up: the block begins, and the worker keeps trying beside it. A wrong
        set-up is raised here when it shows at start; what ends the worker later is raised at the exit. The application goes
        on meanwhile: `failure` of what is given here says that the worker has ended, for the application's own probe.
        """

        def run(stop: asyncio.Event, ready: asyncio.Event) -> Coroutine[Any, Any, None]:
            return self.run(stop, settings=settings, surroundings=surroundings, observer=observer, board=board, ready=ready)

        async with beside(run, name=f"onceonly {self.name}") as background:
            yield background

    @asynccontextmanager
    async def sending(
        self, *, settings: Settings | None = None, surroundings: Surroundings = LIVE, observer: Observer | None = None
    ) -> AsyncIterator[None]:
        """Send what transactions of this process commit, beside the block, and what others left; receive nothing.

        Otherwise as `running`: for an application whose messages are handled elsewhere. Without handlers it has no queue.
        """
        chosen = settings or self.settings

        async def run(stop: asyncio.Event, ready: asyncio.Event) -> None:
            opening = self.opened_patiently(
                stop, settings=chosen, surroundings=surroundings, observer=observer, away=ready, sends=True
            )
            async with opening as ports:
                if ports is not None:
                    _, *upkeep = self.runners(ports, chosen, surroundings=surroundings)
                    ready.set()
                    await run_all(upkeep, stop)

        async with beside(run, name=f"onceonly {self.name} sending"):
            yield

    async def _prepared(
        self, stack: AsyncExitStack, plans: Plans, chosen: Settings, surroundings: Surroundings, *, observer: Observer | None
    ) -> Callable[[], AbstractAsyncContextManager[Ports]]:
        """Open lifespan and providers; gives what opens the adapters, as often as it takes."""
        if self._lifespan is not None:
            await stack.enter_async_context(self._lifespan(self))
        made: dict[Any, object] = {}
        for provider in plans.process:
            made[provider.kind] = await provider.open(stack, made.__getitem__)

        def make(traits: Traits, blobs: Things | None = None) -> EndpointHandlers:
            rules = _rules(chosen, traits.max_body)
            place = None if chosen.blobs is None else BlobPlace(blobs)
            return EndpointHandlers(plans, rules, surroundings, made, blobs=place, peers=chosen.all_peers)

        events, responders = tuple(sorted(plans.handlers)), bool(plans.responders)
        longest = max((each.timeout or 0.0 for each in plans.handlers.values()), default=0.0)
        asked = partial(wire, events=events, entities=plans.work_on_entities, responders=responders, sends=plans.sends)
        return partial(asked, chosen, make, longest_timeout=longest, surroundings=surroundings, observer=observer)

    def _plan(self, settings: Settings, *, sends: bool = False) -> Plans:
        offer, subscribers = settings.places.store.offer, settings.plan.subscribers
        plans = plan(
            self._handlers,
            self._providers,
            endpoint=self.name,
            offer=offer,
            subscribers=subscribers,
            only_sends=bool(settings.control.processed_by) or (sends and not settings.keeps_documents(entities=False)),
            responders=self._responders,
        )
        own = [each for each in plans.handlers.values() if each.retry is not None or each.timeout is not None]
        for each in own:  # what an endpoint's settings promise together, its handlers may not break
            for problem in settings.retention_problems(each.retry, each.timeout):
                raise InvalidHandler(f"endpoint {self.name!r} cannot start: handler {each.function.name}: {problem}")
        return plans

    def _function(self, function: Callable[..., Any], frame: FrameType | None) -> Function:
        if not is_function(function):
            raise InvalidHandler(f"endpoint {self.name!r}: {function!r} is no function; register functions and methods")
        return Function(function, frame)


def _rules(settings: Settings, max_body: int) -> Rules:
    repeats, subscribers = not settings.plan.records, settings.plan.subscribers
    rules = Rules(settings.name, settings.retry, settings.timeout, settings.identity, max_body, subscribers, repeats)
    return rules._replace(grace=settings.worker.grace)
