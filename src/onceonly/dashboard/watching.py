"""What is read of one endpoint, from which place, and how often."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import look_at_store, open_dead_letters, open_transport
from onceonly.assembly.looking import looked_at, refuse_missing
from onceonly.assembly.opened import OpenedStore
from onceonly.assembly.operations import OpenedOperations, open_operations
from onceonly.config.endpoint import Settings
from onceonly.dashboard.probes import Probe
from onceonly.dashboard.reading import KeptOpen
from onceonly.dashboard.workers import WorkerAddress
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import InvalidHandler, QueueMissing
from onceonly.model.journal import Journal
from onceonly.model.presence import REPORT_SECONDS, ProcessState
from onceonly.operations.audit import UnstoredActionLog
from onceonly.operations.overview import age_of_oldest
from onceonly.ports.actions import ActionLog
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex
from onceonly.ports.measuring import MeasuresLetters, MeasuresQueue, MeasuresRecords
from onceonly.ports.transport import BrokerReport, ChecksBroker, Depth, Topology, Transport
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.tasks import late_buckets

QUEUE_SECONDS, STORE_SECONDS, LETTERS_SECONDS = 5.0, 5.0, 15.0
COUNTED = 1000
"""Pending records are counted up to here. The pages say "more than 1,000"."""
MOST = 100_000
"""Messages and dead letters are counted up to here, where their place can count up to a limit."""


class QueueState(Struct, frozen=True):
    """The depth of a queue, or None if it was never declared. `wake_up` is "notifications" or "polling" on PostgreSQL."""

    depth: Depth | None
    wake_up: str = ""


class StoreState(Struct, frozen=True, kw_only=True):
    """What a store tells about an endpoint. None means that it cannot tell.

    `oldest` is the age in seconds of the oldest pending record. `has_janitor` is False where there is nothing to clean up.
    `processes` are those that run the endpoint, `rate` is how many messages they handle per second together.
    """

    pending: int | None = None
    oldest: int | None = None
    journal: Journal | None = None
    has_janitor: bool = False
    unsubscribed: Mapping[str, int] = {}
    processes: tuple[ProcessState, ...] | None = None
    rate: float | None = None


class HandledRate:
    """Messages handled per second by all processes of an endpoint, from what each counted between its last two reports."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        """When a process reported, in seconds by the store's clock, and how many messages it had handled then."""
        self._rates: dict[str, float] = {}

    def read(self, processes: Sequence[ProcessState], now: float) -> float | None:
        """Learn the present reports. None until a process that runs has reported twice; then what those handle that have.

        `now` is in seconds since any instant.
        """
        running = {each.report.process: each for each in processes if not each.is_stale}
        for name in self._last.keys() - running.keys():
            del self._last[name]
            self._rates.pop(name, None)
        for name, each in running.items():
            at, handled = now - each.age, each.report.counters.get("handled", 0)
            before = self._last.get(name)
            if before is None:
                self._last[name] = at, handled
            elif at - before[0] > REPORT_SECONDS / 2:  # a report that was not read yet
                self._rates[name] = max(0, handled - before[1]) / (at - before[0])
                self._last[name] = at, handled
        return sum(self._rates.values()) if self._rates else None


class WatchedEndpoint:
    """One endpoint of the dashboard, with its probes."""

    def __init__(self, endpoint: Endpoint, environment: Environment, workers: Sequence[WorkerAddress] = ()) -> None:
        self.endpoint = endpoint
        self.workers = workers
        self._handled_rate = HandledRate()
        self.settings: Settings = endpoint.settings
        self.environment = environment
        self.queue: Probe[Transport, QueueState] = Probe(
            self.open_transport, self._read_queue, numbers=_queue_numbers, period=QUEUE_SECONDS, environment=environment
        )
        self.store: Probe[OpenedStore, StoreState] = Probe(
            self.open_store, self._read_store, numbers=_store_numbers, period=STORE_SECONDS, environment=environment
        )
        self.letters: Probe[DeadLetters, int] = Probe(
            self._open_letters, self._count_letters, numbers=_letters_numbers, period=LETTERS_SECONDS, environment=environment
        )
        self._kept_letters = KeptOpen(self._open_letters)
        self._kept_operations = KeptOpen(self._open_operations)

    @property
    def name(self) -> str:
        """The name of the endpoint."""
        return self.settings.name

    @property
    def probes(self) -> list[Probe[Any, Any]]:
        """All of its probes."""
        return [self.queue, self.store, self.letters]

    @property
    def processes(self) -> tuple[ProcessState, ...] | None:
        """Those that run it: by its store, else by the addresses of `workers=`. None if it is unknown."""
        state = self.store.value
        if state is not None and state.processes is not None:
            return state.processes
        if not any(each.probe.value is not None for each in self.workers):
            return None
        return tuple(process for each in self.workers for process in each.processes(self.name))

    @cached_property
    def topology(self) -> Topology:
        """The types that it handles; none if its handlers are wrong."""
        return self._topology[0]

    @cached_property
    def problem(self) -> str:
        """What is wrong with its handlers, so that it does not start, or empty."""
        return self._topology[1]

    @cached_property
    def _topology(self) -> tuple[Topology, str]:
        if host_of(self.endpoint).only_sends:
            return Topology(endpoint=self.name), ""
        try:
            return self.endpoint.topology(), ""
        except InvalidHandler as error:
            return Topology(endpoint=self.name), str(error)

    def open_transport(self) -> AbstractAsyncContextManager[Transport]:
        """Open its queue, only to look."""
        return open_transport(looked_at(self.settings.transport), self.name, environment=self.environment)

    def open_store(self) -> AbstractAsyncContextManager[OpenedStore]:
        """Open its store, only to look."""
        refuse_missing(self.settings.store)
        return look_at_store(self.settings, environment=self.environment)

    def open_letters(self) -> AbstractAsyncContextManager[DeadLetters]:
        """Open its dead letters for a request, only to look. They stay open for the next ones."""
        return self._kept_letters.reading()

    def open_operations(self) -> AbstractAsyncContextManager[OpenedOperations]:
        """Open all that can be read of its messages for a request. It stays open for the next ones."""
        return self._kept_operations.reading()

    async def close(self) -> None:
        """Close what is open for requests."""
        await self._kept_letters.close()
        await self._kept_operations.close()

    def _open_letters(self) -> AbstractAsyncContextManager[DeadLetters]:
        own = self.settings.dead_letters
        return open_dead_letters(looked_at(self.settings.store if own is None else own), environment=self.environment)

    def _open_operations(self) -> AbstractAsyncContextManager[OpenedOperations]:
        refuse_missing(self.settings.store)
        return open_operations(self.settings, environment=self.environment)

    def log_of(self, letters: DeadLetters) -> ActionLog:
        """Return the stored actions next to the letters. Where they cannot be stored, this process keeps them in memory."""
        if isinstance(letters, LetterIndex):
            return letters.actions
        return self._unstored

    @cached_property
    def _unstored(self) -> ActionLog:
        return UnstoredActionLog(self.environment.clock)

    async def check_broker(self) -> BrokerReport | None:
        """Ask the broker how it stores the queue; None if the transport cannot. Raises RetryableError, SetupError."""
        async with self.open_transport() as transport:
            return await transport.check() if isinstance(transport, ChecksBroker) else None

    async def _read_queue(self, transport: Transport) -> QueueState:
        wake_up: str = getattr(transport, "wake_up", None) or ""
        try:
            if isinstance(transport, MeasuresQueue):
                found = await transport.measure_queue(self.name, MOST + 1)
                return QueueState(Depth(waiting=found.waiting, held=found.held, delayed=found.delayed), wake_up)
            return QueueState(await transport.depth(self.name, self.topology.events), wake_up)
        except QueueMissing:
            return QueueState(None, wake_up)

    async def _read_store(self, opened: OpenedStore) -> StoreState:
        now = self.environment.clock.now()
        has_ring = opened.ring is not None or (self.settings.plan.history is not None and opened.leader is not None)
        pending = oldest = None
        if isinstance(opened.pending, MeasuresRecords):
            records = await opened.pending.measure_records(COUNTED + 1)
            pending, oldest = records.count, max(0, now - records.oldest) // 1000 if records.count else None
        elif opened.pending is not None and not self.settings.places.store.keeps_documents:
            pending = len(await opened.pending.undispatched(now + 1, COUNTED + 1))
            oldest = await age_of_oldest(opened.pending, now) if pending else None
        journal = await opened.journals.read() if opened.journals is not None else None
        if journal is not None and opened.ring is not None:
            journal = replace(journal, late=await late_buckets(opened.ring))
        processes = None if opened.presence is None else tuple(await opened.presence.read())
        return StoreState(
            pending=pending,
            oldest=oldest,
            journal=journal,
            has_janitor=has_ring or self.settings.plan.tokens is not None or self.settings.makes_things,
            unsubscribed=dict(await opened.unsubscribed.read()) if opened.unsubscribed is not None else {},
            processes=processes,
            rate=None if processes is None else self._handled_rate.read(processes, self.environment.timer.seconds()),
        )

    async def _count_letters(self, letters: DeadLetters) -> int:
        if isinstance(letters, MeasuresLetters):
            return (await letters.measure_letters(self.name, MOST + 1)).count
        return await letters.count(Filter(endpoint=self.name))


def _queue_numbers(state: QueueState) -> Mapping[str, float]:
    depth = state.depth
    return {} if depth is None else {"waiting": depth.waiting, "held": depth.held, "delayed": depth.delayed}


def _store_numbers(state: StoreState) -> Mapping[str, float]:
    numbers = {} if state.pending is None else {"pending": state.pending, "oldest": state.oldest or 0}
    return numbers if state.rate is None else numbers | {"rate": state.rate}


def _letters_numbers(count: int) -> Mapping[str, float]:
    return {"dead": count}
