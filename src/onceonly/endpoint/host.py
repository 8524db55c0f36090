"""The host of an endpoint: opens it in this process, runs it, and holds what is open. For this package, the CLI and tests."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, cast

from msgspec import Struct

from onceonly.algorithms.transaction import TransactionPorts
from onceonly.assembly import (
    EnlistedKeyTransaction,
    EnlistedTransaction,
    OpensUnits,
    check_controls,
    enlist,
    enlist_key,
    open_finishing,
    runs_alone,
    units_at_once,
    wire,
)
from onceonly.assembly.effects import EffectsParts
from onceonly.assembly.transactions import (
    EndpointTraits,
    check_processed,
    dispatch_within,
    outside,
    required,
    session_of,
    watch_of,
)
from onceonly.config.endpoint import DAY_SECONDS, Settings
from onceonly.config.location import scheme_of
from onceonly.endpoint.blobs import BlobPlace
from onceonly.endpoint.enlisted_key import EnlistedKey
from onceonly.endpoint.handlers import EndpointHandlers, HandlerRules
from onceonly.endpoint.hosted import Hosted
from onceonly.endpoint.message_builder import MessageBuilder
from onceonly.endpoint.message_types import note_handled
from onceonly.endpoint.plans import Plans, plan
from onceonly.endpoint.sender import Outgoing
from onceonly.endpoint.signatures import Registrations
from onceonly.endpoint.transactions import TransactionContext, TransactionRequest
from onceonly.model.errors import InvalidHandler, SetupError
from onceonly.model.maintenance_journal import MaintenanceReport
from onceonly.model.record import Record
from onceonly.model.transaction import TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly.ports.effects import ArtifactStore
from onceonly.ports.transport import Topology, Traits
from onceonly.runtime.background import Background, in_background
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.hosted.deliveries import HostedDeliveries, limits_of
from onceonly.runtime.hosted.maintenance import MaintenanceStep
from onceonly.runtime.maintenance.counts import DroppedCounter
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.maintenance.presence import ReportedWorker, TypesElsewhere
from onceonly.runtime.maintenance.tasks import send_old
from onceonly.runtime.maintenance.unmaintained import MaintenanceWatch
from onceonly.runtime.observe.loop_monitor import monitored_loop
from onceonly.runtime.observe.observed_ports import by_relay
from onceonly.runtime.observe.observer import Observer, Observers
from onceonly.runtime.observe.telemetry import (
    NO_TASK_SPANS,
    CreationHook,
    GaugeSink,
    Instruments,
    Telemetry,
    TelemetrySubject,
    with_telemetry,
)
from onceonly.runtime.observe.transaction_work import TransactionWork
from onceonly.runtime.processes.counters import CounterRow
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import Relay
from onceonly.runtime.worker.startup import StartupWait
from onceonly.runtime.worker.worker import Runner, Worker, run_all
from onceonly.systems import Offer

WAITING_AT_ONCE = 2
"""Batches at once where handlers wait for each of their statements. One of them computes while the other one waits."""
UNKNOWN = Traits(lease=None, max_body=256 * 1024, orders_keys=True)
"""What is assumed of a transport that tells nothing before it is opened."""
_Dispatch = Callable[[Sequence[Record]], Awaitable[bool]]


class OpenEndpoint(Struct, eq=False):
    """What holds while the endpoint is open in this process, in one event loop; `means` once a transaction has asked."""

    settings: Settings
    traits: Traits
    environment: Environment
    ports: Ports | None = None
    loop: asyncio.AbstractEventLoop | None = None
    context: TransactionContext | None = None
    counters: CounterRow | None = None


class OpenOptions(TypedDict, total=False):
    """How an endpoint is opened. `settings` override its own, and its ports are enclosed by `observer`."""

    settings: Settings | None
    environment: Environment
    observer: Observer | None


class RunOptions(OpenOptions, total=False):
    """How an endpoint is run. `counters` is the row of the process in the shared counters."""

    counters: CounterRow | None


class HandlerUnits(NamedTuple):
    """What has the transactions of handlers where the store does not, such as Django's connection.

    Each message has one of its own. `offer` is what handlers may ask for.
    """

    open: OpensUnits
    offer: Offer


class _Opening(NamedTuple):
    settings: Settings
    environment: Environment
    observer: Observer | None


class Host:
    """Opens and runs one endpoint, which is given to its lifespan."""

    def __init__(
        self, settings: Settings, registered: Registrations, endpoint: object, units: "HandlerUnits | None" = None
    ) -> None:
        """Host an endpoint. `units` has the transactions of its handlers, if the store does not."""
        self.settings = settings
        self._units = units
        self.notifier = Notifier()
        self._elsewhere = TypesElsewhere()
        self._endpoint = endpoint
        self._registered = registered
        self._running: list[OpenEndpoint] = []
        self._idle: OpenEndpoint | None = None
        self._built: tuple[OpenEndpoint, MessageBuilder] | None = None
        self._hosted_by = 0  # the id of the process that has opened `hosted`
        self._instruments: dict[tuple[str, int], Instruments] = {}
        self._watch: MaintenanceWatch | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def has_responders(self) -> bool:
        return bool(self._registered.responders)

    @property
    def only_sends(self) -> bool:
        """Whether nothing is ever executed here: there are neither handlers nor responders."""
        return not (self._registered.handlers or self._registered.responders)

    def topology(self) -> Topology:
        """Return the input queue and the types it subscribes to. Raises InvalidHandler."""
        plans = self._plan(self.settings)
        return Topology(endpoint=self.name, events=plans.events, commands=plans.commands)

    def works_on_entities(self) -> bool:
        """Return whether any of its handlers does. It may have none."""
        return any(each.has_unit for each in self._registered.handlers)

    def operations(self) -> tuple[str, ...]:
        """Return the names of what other services may have executed here. Raises InvalidHandler."""
        return tuple(sorted(self._plan(self.settings).responders))

    def handlers(
        self,
        environment: Environment = LIVE,
        *,
        settings: Settings | None = None,
        max_body: int | None = None,
        blobs: ArtifactStore | None = None,
    ) -> EndpointHandlers:
        """Return the Handlers port of this endpoint. Raises InvalidHandler.

        `blobs` is the place they read blobs from. `max_body` replaces the limit of the transport.
        """
        chosen = settings or self.settings
        place = None if chosen.blobs is None else BlobPlace(blobs)
        plans, rules, peers = self._plan(chosen), self._rules(chosen, _traits(chosen)), chosen.all_peers
        rules = rules if max_body is None else rules._replace(max_body=max_body)
        creation = self._instruments_of(chosen)
        projections = dict.fromkeys(chosen.projections or ())
        return EndpointHandlers(
            plans, rules, environment, {}, blobs=place, peers=peers, projections=projections, creation=creation
        )

    @asynccontextmanager
    async def opened(
        self,
        **options: Unpack[OpenOptions],
    ) -> AsyncIterator[Ports]:
        """Open everything but the worker: lifespan, providers, adapters. Returns the ports.

        Raises InvalidHandler and other SetupErrors before anything is received, and RetryableError when a server is away.
        """
        opening = self._opening(options)
        async with AsyncExitStack() as stack:
            wired = await self._prepared(stack, self._plan(opening.settings), opening)
            ports = await stack.enter_async_context(wired())
            stack.enter_context(self.bind(ports, settings=opening.settings, environment=opening.environment))
            yield ports

    @asynccontextmanager
    async def opened_patiently(
        self,
        stop: asyncio.Event,
        *,
        away: asyncio.Event | None = None,
        sends: bool = False,
        **options: Unpack[OpenOptions],
    ) -> AsyncIterator[Ports | None]:
        """Open as `opened` does, and wait for servers that are away, forever. Returns None if `stop` was set meanwhile.

        Lifespan and providers are opened once, before. Sets `away` when a server was found away. Who `sends` needs no handlers.
        """
        opening = self._opening(options)
        environment = opening.environment
        patience = StartupWait(stop, endpoint=self.name, environment=environment, away=away, notifier=self.notifier)
        async with AsyncExitStack() as stack:
            wired = await self._prepared(stack, self._plan(opening.settings, sends=sends), opening)
            ports = await patience.enter(stack, wired)
            if ports is not None:
                stack.enter_context(self.bind(ports, settings=opening.settings, environment=environment))
            yield ports

    def runners(
        self, ports: Ports, settings: Settings, *, environment: Environment = LIVE, counters: CounterRow | None = None
    ) -> tuple[Runner, ...]:
        """Return the runners of these ports: the worker, and those that finish or remove what others left."""
        grace, after, maintenance = settings.worker.grace, settings.relay_after, ports.maintenance
        self._use_counters(ports, counters)
        instruments = self._instruments_of(settings)
        spans = instruments or NO_TASK_SPANS
        janitor = MaintenanceLoop(ports, grace=grace, environment=environment, spans=spans) if maintenance.has_tasks else None
        ask = janitor.ask if janitor is not None else lambda: None
        plans = self._plan(settings, sends=True)
        most = units_at_once(settings, entities=plans.work_on_entities)
        least = _at_once(settings, plans)
        working = Worker(
            ports,
            settings.worker,
            environment=environment,
            counters=counters,
            ask=ask,
            least=least,
            most=most,
            longest=_longest(settings, plans),
        )
        runners = [self._reporting(working, ports, settings, environment=environment)]
        if (searched := ports.for_relay()) is not None:
            relayed = by_relay(searched)
            runners.append(
                Relay(relayed, after=after, grace=grace, notifier=self.notifier, environment=environment, spans=spans)
            )
        if janitor is not None:
            runners.append(janitor)
        if instruments is not None and instruments.gauges is not None:
            runners.append(_gauge_loop(settings, plans.events, instruments.gauges, environment=environment))
        return tuple(runners)

    def _reporting(
        self, working: Worker | HostedDeliveries, ports: Ports, settings: Settings, *, environment: Environment
    ) -> Runner:
        """Return a worker, or what stands for one, that is reported and whose dropped messages are counted."""
        worker: Runner = working
        maintenance = ports.maintenance
        if maintenance.drops is not None:
            in_store = maintenance.tokens is None
            worker = DroppedCounter(working, maintenance.drops, endpoint=self.name, in_store=in_store, environment=environment)
        if maintenance.presence is not None:
            reported = ReportedWorker(worker, working, maintenance.presence, endpoint=self.name, environment=environment)
            types = tuple(sorted(self._plan(settings, sends=True).handlers))
            worker = reported.with_types(types, self._elsewhere)
        return worker

    async def run(
        self,
        stop: asyncio.Event,
        *,
        ready: asyncio.Event | None = None,
        counters: CounterRow | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Work until `stop` is set; then finish what is in flight and close everything. Raises SetupError.

        A server that is away at start is waited for. Sets `ready` once it is receiving, or has found that it has to wait.
        """
        opening = self._opening(options)
        _ = opening.settings.required_transport
        if opening.settings.receives_from is not None:
            raise SetupError(
                f"endpoint {self.name!r} has no worker: its host receives from {opening.settings.receives_from}. Use hosted(), "
                "or remove receives_from"
            )
        async with self.opened_patiently(stop, away=ready, **options) as ports:
            if ports is None:
                return
            runners = self.runners(ports, opening.settings, environment=opening.environment, counters=counters)
            if ready is not None:
                ready.set()
            with nullcontext() if opening.settings.debug else monitored_loop():
                await run_all(runners, stop)

    @asynccontextmanager
    async def running(self, **options: Unpack[RunOptions]) -> AsyncIterator[Background]:
        """Run the worker in the background of a block; see `Endpoint.running`."""

        def run(stop: asyncio.Event, ready: asyncio.Event) -> Coroutine[Any, Any, None]:
            return self.run(stop, ready=ready, **options)

        async with in_background(run, name=f"onceonly {self.name}") as background:
            yield background

    @asynccontextmanager
    async def sending(self, **options: Unpack[OpenOptions]) -> AsyncIterator[None]:
        """Send what transactions of this process commit, next to the block, and what others left; receive nothing.

        Otherwise as `running`: for an application whose messages are handled elsewhere. Without handlers it has no queue.
        """
        opening = self._opening(options)
        if not opening.settings.sends:
            _ = opening.settings.required_transport
        work = TransactionWork()
        options = {**options, "observer": work if opening.observer is None else Observers(opening.observer, work)}
        if opening.settings.store_plan.has_controls:
            check_controls(opening.settings)

        async def run(stop: asyncio.Event, ready: asyncio.Event) -> None:
            async with self.opened_patiently(stop, away=ready, sends=True, **options) as ports:
                if ports is not None:
                    _, *others = self.runners(ports, opening.settings, environment=opening.environment)
                    if (presence := ports.maintenance.presence) is not None:
                        environment = opening.environment
                        others.append(ReportedWorker(work, work, presence, endpoint=self.name, environment=environment))
                    ready.set()
                    await run_all(others, stop)
                    await stop.wait()  # a store that cannot be searched may need no runner; the ports stay open

        async with in_background(run, name=f"onceonly {self.name} sending"):
            yield

    @asynccontextmanager
    async def hosted(self, **options: Unpack[OpenOptions]) -> AsyncIterator[Hosted]:
        """Open everything but a queue, for messages that a host hands over; see `Endpoint.hosted`."""
        if self._hosted_by not in {0, os.getpid()}:
            raise SetupError(
                f"endpoint {self.name!r} was hosted when this process was forked: open hosted() in each process, after the fork"
            )
        if self._hosted_by:
            raise SetupError(f"endpoint {self.name!r} is hosted in this process already: open hosted() once, and share it")
        self._hosted_by = os.getpid()
        opening = self._opening(options)
        try:
            async with AsyncExitStack() as stack:
                wired = await self._prepared(stack, self._plan(opening.settings), opening, hosted=True)
                ports = await stack.enter_async_context(wired())
                stack.enter_context(self.bind(ports, settings=opening.settings, environment=opening.environment))
                deliveries = self._hosted_deliveries(ports, opening)
                await stack.enter_async_context(self._reported(deliveries, ports, opening))
                try:
                    yield Hosted(deliveries, self.name)
                finally:
                    await deliveries.close()
        finally:
            self._hosted_by = 0

    def _hosted_deliveries(self, ports: Ports, opening: _Opening) -> HostedDeliveries:
        settings, environment, _ = opening
        plans = self._plan(settings)
        step: MaintenanceStep | None = None
        if ports.maintenance.has_tasks:
            spans = self._instruments_of(settings) or NO_TASK_SPANS
            janitor = MaintenanceLoop(ports, grace=settings.worker.grace, environment=environment, spans=spans)
            step = MaintenanceStep(janitor, environment)
        most = units_at_once(settings, entities=plans.work_on_entities)
        limits = limits_of(_at_once(settings, plans), most, _longest(settings, plans))
        return HostedDeliveries(ports, settings.worker, limits=limits, environment=environment, maintenance=step)

    def _reported(
        self, deliveries: HostedDeliveries, ports: Ports, opening: _Opening
    ) -> AbstractAsyncContextManager[Background]:
        """Report the process, count what it drops, and read gauges, for people. A process that is killed loses the last."""
        settings, environment, _ = opening
        runners = [self._reporting(deliveries, ports, settings, environment=environment)]
        instruments = self._instruments_of(settings)
        if instruments is not None and instruments.gauges is not None:
            events = self._plan(settings).events
            runners.append(_gauge_loop(settings, events, instruments.gauges, environment=environment))

        async def run(stop: asyncio.Event, ready: asyncio.Event) -> None:
            ready.set()
            await run_all(runners, stop)

        return in_background(run, name=f"onceonly {self.name} hosted")

    async def maintain(self, remaining: float, *, environment: Environment = LIVE) -> MaintenanceReport:
        """Do what is due in this process, within this number of seconds; see `Endpoint.maintain`."""
        if not 0 < remaining <= DAY_SECONDS:
            raise ValueError(f"remaining must be a number of seconds above 0, at most a day, not {remaining!r}")
        began = environment.timer.seconds()
        async with AsyncExitStack() as stack:
            running = self._bound_here()
            settings = self.settings if running is None else running.settings
            ports = None if running is None else running.ports
            if ports is None:
                entities, observer = self.works_on_entities(), with_telemetry(self._instruments_of(settings), None)
                opening = open_finishing(settings, entities=entities, environment=environment, observer=observer)
                limit = asyncio.timeout(remaining)
                try:
                    async with limit:
                        ports = await stack.enter_async_context(opening)
                except TimeoutError:
                    if not limit.expired():
                        raise
                    return MaintenanceReport(troubles=("its time was over before store and transport were open",))
            if not ports.maintenance.has_tasks:
                return MaintenanceReport()
            spans = self._instruments_of(settings) or NO_TASK_SPANS
            janitor = MaintenanceLoop(ports, grace=settings.worker.grace, environment=environment, spans=spans)
            return await janitor.run_once(remaining - (environment.timer.seconds() - began))

    async def send_old(self) -> int:
        """Send what is committed and was not sent, as a relay does, once, with what is open in this event loop.

        Returns how many records are done with. 0 where no relay finds any. Raises SetupError, RetryableError.
        """
        running = self._bound_here()
        if running is None or running.ports is None:
            raise SetupError(f"endpoint {self.name!r} is not open in this event loop")
        if (pending := running.ports.pending) is None or running.ports.for_relay() is None:
            return 0
        older_than = running.environment.clock.now() - round(running.settings.relay_after * 1000)
        return await send_old(running.ports, pending, older_than)

    def enlist(self, session: object) -> Outgoing:
        """Send messages inside the open transaction of a session; see `Endpoint.enlist`. Raises SetupError."""
        return self.outgoing(lambda settings: enlist(settings, session, self.notifier.notify))

    def enlist_key(self, session: object, asked: TransactionRequest) -> "EnlistedKey | Awaitable[EnlistedKey]":
        """Take a key inside the open transaction of a session; see `Endpoint.enlist`. Raises SetupError, ConflictError."""
        running = self._newest()
        opening = self.opening_of(asked)

        async def awaited(taking: Awaitable[EnlistedKeyTransaction]) -> EnlistedKey:
            return self.outgoing_with_key(await taking, opening.key)

        now = running.environment.clock.now()
        taken = enlist_key(running.settings, session, self.notifier.notify, opening, now=now)
        return awaited(taken) if isinstance(taken, Awaitable) else self.outgoing_with_key(taken, opening.key)

    def outgoing(self, enlisting: Callable[[Settings], EnlistedTransaction]) -> Outgoing:
        """Return what sends messages in a transaction that the caller owns. `enlisting` gives it for the settings in use."""
        running = self._newest()
        return Outgoing(enlisting(running.settings), self._builder_of(running), running.environment.clock)

    def outgoing_with_key(self, taken: EnlistedKeyTransaction, key: str) -> EnlistedKey:
        """Return what sends messages, and has the answer, in a transaction that the caller owns and that has taken a key."""
        running = self._newest()
        clock, builder = running.environment.clock, self._builder_of(running)
        return EnlistedKey(taken, builder, clock, open_context=self.transaction_context, key=key)

    def opening_of(self, asked: TransactionRequest) -> TransactionAttempt:
        """Return a new attempt at what a caller asks for."""
        return TransactionAttempt(
            endpoint=self.name,
            attempt=self.current_environment().ids.new_id(),
            max_commit=asked.max_commit,
            wait=asked.wait,
            key=asked.key,
            fingerprint=asked.fingerprint,
        )

    def _newest(self) -> OpenEndpoint:
        """Return what was opened last. If the endpoint is not open, return its settings without ports."""
        if self._running:
            return self._running[-1]
        if self._idle is None or self._idle.settings is not self.settings:
            self._idle = OpenEndpoint(self.settings, _traits(self.settings), LIVE)
        return self._idle

    def _builder_of(self, running: OpenEndpoint) -> MessageBuilder:
        """Return what makes its messages. It is kept for the next transaction, since it reads URLs."""
        found = self._built
        if found is None or found[0] is not running:
            found = self._built = (running, _builder(running.settings, running.traits, self._instruments_of(running.settings)))
        return found[1]

    @contextmanager
    def bind(self, ports: Ports, *, settings: Settings | None = None, environment: Environment = LIVE) -> Iterator[None]:
        """Use these ports, which the caller has opened, for transactions of this event loop.

        Without `settings` they are those under which the endpoint is open already.
        """
        chosen = settings or (self._running[-1].settings if self._running else self.settings)
        running = OpenEndpoint(chosen, ports.transport.traits, environment, ports, asyncio.get_running_loop())
        self._running.append(running)
        try:
            yield
        finally:
            self._running.remove(running)

    @property
    def has_own_units(self) -> bool:
        """Whether a host has the transactions of its handlers, so that it works on its own store only."""
        return self._units is not None

    @property
    def is_open(self) -> bool:
        """Whether it is open in any event loop of this process."""
        return bool(self._running)

    def bound_ports(self) -> Ports | None:
        """Return the ports that are open in this event loop; None when the endpoint is not open here."""
        running = self._bound_here()
        return None if running is None else running.ports

    def counters_here(self) -> CounterRow | None:
        """Return the row of this process in the shared counters; None where no supervisor watches it."""
        running = self._bound_here()
        return None if running is None else running.counters

    def _use_counters(self, ports: Ports, counters: CounterRow | None) -> None:
        for running in self._running:
            if running.ports is ports:
                running.counters = counters

    def _bound_here(self) -> OpenEndpoint | None:
        loop = asyncio.get_running_loop()
        bound = (running for running in reversed(self._running) if running.ports is not None and running.loop is loop)
        return next(bound, None)

    def current_environment(self) -> Environment:
        """Return the environment with which the endpoint was opened."""
        return self._running[-1].environment if self._running else LIVE

    def transaction_context(self) -> TransactionContext | AbstractAsyncContextManager[TransactionContext]:
        """Return what transactions work with: the ports that are open in this event loop, else some of their own."""
        running = self._bound_here()
        if running is None or running.ports is None:
            return self._open_own_context()
        running.context = running.context or self._bound_context(running, running.ports)
        return running.context

    def _bound_context(self, running: OpenEndpoint, ports: Ports) -> TransactionContext:
        if ports.controls:
            check_controls(running.settings)
        transactions = required(ports.transactions, running.settings)
        own_ports = TransactionPorts(transactions, ports.admission, ports.controls, ports.transport)
        return self._context_of(running, own_ports, partial(dispatch_within, ports=ports, settings=running.settings))

    @asynccontextmanager
    async def _open_own_context(self) -> AsyncIterator[TransactionContext]:
        chosen = self._newest()  # of another event loop, if it is open
        has = EndpointTraits(
            handlers=bool(self._registered.handlers),
            entities=any(each.has_unit for each in self._registered.handlers),
        )
        self._watch = self._watch or watch_of(chosen.settings, chosen.environment)
        async with outside(chosen.settings, has, environment=chosen.environment, watch=self._watch) as opened:
            yield self._context_of(chosen, opened.ports, opened.dispatch)._replace(expect=opened.expect)

    def _context_of(self, running: OpenEndpoint, ports: TransactionPorts, directly: _Dispatch) -> TransactionContext:
        """Where control messages decide a transaction, no relay finds its record: it is sent by this very task."""
        longest = running.settings.chosen_control.max_commit // timedelta(milliseconds=1) if ports.controls else 0
        kind = session_of(running.settings.places.store)
        builder = self._builder_of(running)
        context = TransactionContext(self.settings.name, ports, directly, builder, running.environment, kind, longest)
        return context if ports.controls else context._replace(left_to_relay=self._left_to_relay)

    def _left_to_relay(self, records: Sequence[Record]) -> bool:
        """Leave it to the relay of this process, if there is one, or will be: it does not wait, and tries again."""
        is_there = self.notifier.is_heard or self.notifier.is_expected
        if is_there and records:
            self.notifier.notify(records)
        return is_there

    def _opening(self, options: OpenOptions) -> _Opening:
        settings = options.get("settings") or self.settings
        return _Opening(settings, options.get("environment", LIVE), options.get("observer"))

    async def _prepared(
        self, stack: AsyncExitStack, plans: Plans, opening: _Opening, *, hosted: bool = False
    ) -> Callable[[], AbstractAsyncContextManager[Ports]]:
        """Open lifespan and providers. Returns what opens the adapters, as often as it takes."""
        chosen, environment, _ = opening
        if self._units is not None and chosen.store != self.settings.store:
            raise SetupError(f"endpoint {self.name!r} has the store of its host, so none can be given instead: remove --store")
        instruments = self._instruments_of(chosen)
        observer = with_telemetry(instruments, opening.observer)
        if chosen.lifespan is not None:
            await stack.enter_async_context(chosen.lifespan(self._endpoint))
        note_handled(self.name, plans.bare_names)
        made: dict[Any, object] = {}
        for provider in plans.process:
            made[provider.kind] = await provider.open(stack, made.__getitem__)

        def make(traits: Traits, places: EffectsParts = EffectsParts()) -> EndpointHandlers:  # noqa: B008 - immutable
            return EndpointHandlers(
                plans,
                self._rules(chosen, traits),
                environment,
                made,
                blobs=None if chosen.blobs is None else BlobPlace(places.blobs),
                peers=chosen.all_peers,
                projections=dict.fromkeys(chosen.projections or ()) | dict(places.projections),
                creation=instruments,
                elsewhere=self._elsewhere,
            )

        responders = bool(plans.responders)
        longest = max((each.timeout or 0.0 for each in plans.handlers.values()), default=0.0)
        longest = DAY_SECONDS if chosen.debug else longest
        asked = partial(
            wire,
            events=plans.events,
            commands=plans.commands,
            entities=plans.work_on_entities,
            responders=responders,
            sends=plans.sends,
            isolations={name: each.isolation for name, each in plans.handlers.items() if each.isolation is not None},
            at_once=_at_once(chosen, plans),
            hosted=hosted,
            units=None if self._units is None else self._units.open,
        )
        return partial(asked, chosen, make, longest_timeout=longest, environment=environment, observer=observer)

    def _instruments_of(self, settings: Settings) -> Instruments | None:
        """Return the telemetry of this process for these settings, made once. None if it is off."""
        if settings.telemetry is None:
            return None
        key = settings.transport or "", id(settings.telemetry)  # the settings keep the object, so its `id()` is its own
        if key not in self._instruments:
            self._instruments[key] = instruments_of(settings)
        return self._instruments[key]

    def _plan(self, settings: Settings, *, sends: bool = False) -> Plans:
        offer, subscribers = settings.places.store.offer, settings.plan.subscribers
        offer = offer if self._units is None else self._units.offer
        plans = plan(
            self._registered.handlers,
            self._registered.providers,
            endpoint=self.name,
            offer=offer,
            subscribers=subscribers,
            only_sends=bool(settings.processed_by) or (sends and not settings.store_plan.has_controls),
            has_controls=settings.store_plan.has_controls,
            responders=self._registered.responders,
            middleware=self._registered.middleware,
        )
        if settings.processed_by:
            check_processed(settings, EndpointTraits(handlers=bool(plans.handlers)))
        own = [each for each in plans.handlers.values() if each.retry is not None or each.timeout is not None]
        for each in own:  # what an endpoint's settings promise together, its handlers may not break
            for problem in settings.retention_problems(each.retry, each.timeout):
                raise InvalidHandler(f"endpoint {self.name!r} cannot start: handler {each.function.name}: {problem}")
        return plans

    def _rules(self, settings: Settings, traits: Traits) -> HandlerRules:
        rules = _rules(settings, traits)
        return rules if self._units is None else rules._replace(runs_alone=True)


def _gauge_loop(settings: Settings, events: Sequence[str], sink: GaugeSink, *, environment: Environment) -> Runner:
    """Return what reads gauges at intervals."""
    from onceonly.assembly.gauges import GaugeLoop  # noqa: PLC0415 - imports all metrics, which only telemetry needs

    return GaugeLoop(settings, events, sink, environment=environment)


def _longest(settings: Settings, plans: Plans) -> float:
    """Return how many seconds a handler of this process may take."""
    return max([settings.timeout, *(each.timeout or 0.0 for each in plans.handlers.values())]) + settings.worker.grace


def _at_once(settings: Settings, plans: Plans) -> int:
    """Return how many batches a worker handles at once, also while no handler waits for something else than the store."""
    if settings.worker.concurrency is not None or not plans.take_connections:
        return settings.worker.at_once
    return min(WAITING_AT_ONCE, units_at_once(settings, entities=plans.work_on_entities))


class _HasHost(Protocol):
    """An `Endpoint`, which imports this module when it is opened."""

    @property
    def _host(self) -> Host: ...


def host_of(endpoint: _HasHost) -> Host:
    return endpoint._host  # noqa: SLF001 - the two belong together; users see the endpoint alone


def _traits(settings: Settings) -> Traits:
    return settings.places.transport.traits or UNKNOWN


def _builder(settings: Settings, traits: Traits, creation: CreationHook | None) -> MessageBuilder:
    return MessageBuilder(
        settings.name,
        max_body=traits.max_body,
        by_token=settings.plan.tokens is not None,
        transport=str(settings.places.transport),
        has_transport=settings.has_transport,
        orders_keys=traits.orders_keys,
        creation=creation,
        destinations=settings.destinations(traits.destinations),
        format_=settings.format,
        carries_headers=traits.carries_headers,
    )


def instruments_of(settings: Settings) -> Instruments:
    """Return new telemetry for an endpoint with these settings, which have some."""
    telemetry = cast("Telemetry", settings.telemetry)
    deduplication = {"DedupStore": "dedup_store"}.get(kind := type(settings.deduplication).__name__, kind.lower())
    transport = settings.transport or ""
    return telemetry.instrument(TelemetrySubject(settings.name, scheme_of(transport), transport, deduplication))


def _rules(settings: Settings, traits: Traits) -> HandlerRules:
    repeats, subscribers = not settings.plan.records, settings.plan.subscribers
    rules = HandlerRules(
        settings.name, settings.retry, settings.timeout, settings.identity, traits.max_body, subscribers, repeats
    )
    return rules._replace(
        grace=settings.worker.grace,
        max_hops=settings.max_hops,
        carry_headers=tuple(name.lower() for name in settings.carry_headers),
        threads=settings.worker.def_handlers != "loop",
        is_limited=not settings.debug,
        transport=str(settings.places.transport),
        has_transport=settings.has_transport,
        orders_keys=traits.orders_keys,
        unknown_types_wait=settings.unknown_types_wait,
        runs_alone=runs_alone(settings),
        destinations=settings.destinations(traits.destinations),
        format_=settings.format,
        carries_headers=traits.carries_headers,
    )
