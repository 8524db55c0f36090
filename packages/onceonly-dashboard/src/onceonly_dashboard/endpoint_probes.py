"""What is read of one endpoint, from which place, and how often."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from onceonly.assembly import open_dead_letters, open_read_only, open_transport
from onceonly.assembly.operations import OpenedOperations, open_operations
from onceonly.assembly.parts import StoreParts
from onceonly.assembly.stores import read_only, refuse_missing
from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import InvalidHandler, QueueMissing
from onceonly.model.health import REPORT_SECONDS, ProcessState
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.model.minutes import NO_WORK, WorkHistory, total
from onceonly.operations.audit import UnstoredActionLog
from onceonly.operations.overview import age_of_oldest
from onceonly.ports.dead_letters import DeadLetters, Filter, LetterIndex
from onceonly.ports.measurements import MeasuresLetters, MeasuresQueue, MeasuresRecords
from onceonly.ports.operators import ActionLog
from onceonly.ports.transport import BrokerReport, ChecksBroker, Depth, Topology, Transport
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.tasks import late_buckets
from onceonly_dashboard.cache import KeptOpen
from onceonly_dashboard.probes import Probe, answer_or_reason, answering
from onceonly_dashboard.workers import WorkerAddress

QUEUE_SECONDS, STORE_SECONDS, LETTERS_SECONDS = 5.0, 5.0, 15.0
COUNTED = 1000
"""Pending records are counted up to here. The pages say "more than 1,000"."""
MOST = 100_000
"""Messages and dead letters are counted up to here, where their place can count up to a limit."""


_Value = TypeVar("_Value")


class QueueState(Struct, frozen=True):
    """The depth of a queue, or None if it was never declared."""

    depth: Depth | None


class StoreState(Struct, frozen=True, kw_only=True):
    """What a store reports about an endpoint. A field is None where it cannot.

    `oldest` is the age in seconds of the oldest pending record. `has_janitor` is False where there is nothing to clean up.
    `processes` are those that run the endpoint, `rate` is how many messages they handle per second together.
    `ended` is what those did that have ended.
    """

    pending: int | None = None
    oldest: int | None = None
    journal: MaintenanceJournal | None = None
    has_janitor: bool = False
    unsubscribed: Mapping[str, int] = {}
    processes: tuple[ProcessState, ...] | None = None
    ended: WorkHistory = NO_WORK
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


class EndpointProbes:
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
        self.store: Probe[StoreParts, StoreState] = Probe(
            self.open_store, self._read_store, numbers=_store_numbers, period=STORE_SECONDS, environment=environment
        )
        self.letters: Probe[DeadLetters, int] = Probe(
            self._open_letters,
            self._count_letters,
            numbers=lambda count: {"dead": count},
            period=LETTERS_SECONDS,
            environment=environment,
        )
        self._unstored: ActionLog = UnstoredActionLog(environment.clock)
        self._kept_letters = KeptOpen(self._open_letters)
        self._kept_operations = KeptOpen(self._open_operations)

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def all_probes(self) -> list[Probe[Any, Any]]:
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

    @property
    def work(self) -> WorkHistory | None:
        """What all its processes did, of those that have ended as well. None if it is unknown."""
        state = self.store.value
        if state is None or state.processes is None:
            return None
        return total([state.ended, *(each.report.work for each in state.processes)])

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
        """Open its queue for reading."""
        return open_transport(read_only(self.settings.transport), self.name, environment=self.environment)

    def open_store(self) -> AbstractAsyncContextManager[StoreParts]:
        """Open its store for reading."""
        refuse_missing(self.settings.store)
        return open_read_only(self.settings, environment=self.environment)

    def open_letters(self) -> AbstractAsyncContextManager[DeadLetters]:
        """Open its dead letters for a request that reads. They stay open for the next ones."""
        return self._kept_letters.reading()

    def open_operations(self) -> AbstractAsyncContextManager[OpenedOperations]:
        """Open all that can be read of its messages for a request. It stays open for the next ones."""
        return self._kept_operations.reading()

    async def answer(self, read: Callable[[OpenedOperations], Awaitable[_Value]]) -> tuple[_Value | None, str]:
        """Return what is read of its messages, or None and why it cannot be read in time."""

        async def answer() -> _Value:
            async with self.open_operations() as opened, answering():
                return await read(opened)

        return await answer_or_reason(answer)

    async def close(self) -> None:
        await self._kept_letters.close()
        await self._kept_operations.close()

    def _open_letters(self) -> AbstractAsyncContextManager[DeadLetters]:
        own = self.settings.dead_letters
        return open_dead_letters(read_only(self.settings.store if own is None else own), environment=self.environment)

    def _open_operations(self) -> AbstractAsyncContextManager[OpenedOperations]:
        refuse_missing(self.settings.store)
        return open_operations(self.settings, environment=self.environment)

    def log_of(self, letters: DeadLetters) -> ActionLog:
        """Return the stored actions next to the letters. Where they cannot be stored, this process keeps them in memory."""
        if isinstance(letters, LetterIndex):
            return letters.actions
        return self._unstored

    async def check_broker(self) -> BrokerReport | None:
        """Read how the broker stores the queue; None if the transport cannot. Raises RetryableError, SetupError."""
        async with self.open_transport() as transport:
            return await transport.check() if isinstance(transport, ChecksBroker) else None

    async def _read_queue(self, transport: Transport) -> QueueState:
        try:
            if isinstance(transport, MeasuresQueue):
                found = await transport.measure_queue(self.name, MOST + 1)
                return QueueState(Depth(waiting=found.waiting, held=found.held, delayed=found.delayed))
            return QueueState(await transport.depth(self.name, self.topology.events))
        except QueueMissing:
            return QueueState(None)

    async def _read_store(self, opened: StoreParts) -> StoreState:
        now = self.environment.clock.now()
        has_ring = opened.ring is not None or (self.settings.plan.history is not None and opened.leader is not None)
        pending = oldest = None
        if isinstance(opened.pending, MeasuresRecords):
            records = await opened.pending.measure_records(COUNTED + 1)
            pending, oldest = records.count, max(0, now - records.oldest) // 1000 if records.count else None
        elif opened.pending is not None and self.settings.store_plan.is_searchable:
            pending = len(await opened.pending.undispatched(now + 1, COUNTED + 1))
            oldest = await age_of_oldest(opened.pending, now) if pending else None
        journal = await opened.journals.read() if opened.journals is not None else None
        if journal is not None and opened.ring is not None:
            journal = replace(journal, late=await late_buckets(opened.ring))
        presence = None if opened.presence is None else await opened.presence.read_all()
        processes = None if presence is None else tuple(presence.processes)
        return StoreState(
            pending=pending,
            oldest=oldest,
            journal=journal,
            has_janitor=has_ring or self.settings.plan.tokens is not None or self.settings.makes_artifacts,
            unsubscribed=dict(await opened.unsubscribed.read()) if opened.unsubscribed is not None else {},
            processes=processes,
            ended=NO_WORK if presence is None else presence.ended,
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
