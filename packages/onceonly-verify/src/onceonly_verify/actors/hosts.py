"""Hosts: they receive and acknowledge, and the shipping code of hosted delivery handles what they hand over."""

from asyncio import CancelledError
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from types import coroutine
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.transport import MemoryReceipt
from onceonly.model.hosted import HostedMessage, HostedOutcome
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly.ports.run_markers import DeadRuns, StartResult
from onceonly_verify.checked_handlers import EventClock
from onceonly_verify.clock import is_to_come
from onceonly_verify.invariants.reports import reported
from onceonly_verify.programs import Programs
from onceonly_verify.roles import Batch, Begun, Role, receive_batches
from onceonly_verify.workload import HOST_DEAD, DeduplicationMode, Workload

GIVES_UP = "gives up"
FROM_HOST = MemoryReceipt(number=0, times=0)


def hosted_roles(workload: Workload, *, workers: int, batch: int) -> tuple[Role, ...]:
    """Return the processes of each endpoint that handle what a host hands over, up to `batch` messages at once."""
    return tuple(
        Role(
            endpoint=endpoint,
            queue=endpoint,
            label=label,
            workers=workers,
            batch=batch,
            is_hosted=True,
            begins=partial(_delivered, most=workload.hosted_most),
            waits=is_to_come if workload.deduplication is DeduplicationMode.RING else None,
            program=_serve,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
    )


def host_roles(workload: Workload) -> tuple[Role, ...]:
    """Return the part of the host that gives up messages on its own."""
    if not workload.hosted_most:
        return ()
    endpoint = workload.endpoints[0]
    return (
        Role(
            endpoint=endpoint,
            queue=f"host of {endpoint}",
            point=GIVES_UP,
            label=f"{workload.labels[0]}host: ",
            begins=partial(_give_up, most=workload.hosted_most),
            program=_rest,
        ),
    )


def _delivered(broker: Any, role: Role, transports: Any, *, most: int) -> Iterator[Begun]:
    """Take any deliveries that the host has not made too often."""
    for world, batch in receive_batches(broker, role, transports):
        receipts: list[Any] = [delivery.receipt for delivery in batch]
        if not most or all(receipt.times <= most for receipt in receipts):
            yield world, batch


def _give_up(broker: Any, role: Role, _transports: Any, *, most: int) -> Iterator[Begun]:
    """Put a message away that was delivered as often as the host delivers it."""
    for entry in broker.entries:
        if entry.queue == role.endpoint and entry.times >= most and not entry.held_until:
            after = tuple(replace(each, queue=HOST_DEAD) if each is entry else each for each in broker.entries)
            yield (
                replace(broker, entries=after),
                (Delivery(receipt=FROM_HOST, queue=role.queue, headers=(), body=entry.body),),
            )


async def _rest(_programs: Programs, _batch: Batch, _ports: Ports) -> None:
    """Do nothing more."""


def _serve(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    handlers: Any = ports.handlers
    call = HostedProcess(programs, ports)
    serving = programs.host.serve(batch, call.handle, ports.transport, again=handlers.workload.hosted_again)
    return _in_own_context(serving)


@coroutine
def _in_own_context(work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Step a coroutine in context variables of its own, as each task has them: the search steps many in one thread."""
    context, outcome = copy_context(), None
    while True:
        try:
            call = context.run(work.send, outcome)
        except StopIteration as over:
            return over.value
        try:
            outcome = yield call
        except GeneratorExit:
            context.run(work.close)
            raise


class HostedProcess:
    """What a process does with what its host hands over, without its event loop: see `runtime/hosted/deliveries`."""

    def __init__(self, programs: Programs, ports: Ports) -> None:
        transport = programs.hosted_transport
        self._programs = programs
        self._calls = programs.hosted_calls.HostedCalls(ports.handlers, ports.endpoint, EventClock())
        self._runs = RecordedRuns(programs.hosted_run_markers.HostedRunMarkers(ports.run_markers, self._calls.gives_up))
        self._ports = ports._replace(
            run_markers=self._runs,
            transport=transport.HostedTransport(ports.transport, ports.endpoint),
            dead_letters=transport.HostedDeadLetters(ports.dead_letters),
        )

    async def handle(self, messages: Sequence[HostedMessage]) -> tuple[HostedOutcome, ...]:
        """Take messages through; see `Hosted.handle`. The time of the host may end at each call of a port."""
        call = self._calls.begin(messages)
        self._programs.hosted_transport.enter_call(call)
        call.offered = call.deliveries
        deliver = self._programs.delivery.deliver
        try:
            taken = await self._ports.transport.receive(len(messages), 0.0)
            await (reported(deliver, taken, self._ports) if self._programs.has_log else deliver(taken, self._ports))
        except CancelledError:
            call.trouble = self._programs.hosted_calls.CUT_OFF
            await self._runs.close()
        outcomes: tuple[HostedOutcome, ...] = self._calls.outcomes(call, messages)
        return outcomes


class RecordedRuns:
    """Run markers that end what a call has left open that was cut off, as `IsolatedRuns` does."""

    def __init__(self, run_markers: Any) -> None:
        self._run_markers = run_markers
        self._recorded: list[Identity] = []

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        found: DeadRuns = await self._run_markers.find_dead(identities)
        return found

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        self._recorded.append(identity)
        started: StartResult = await self._run_markers.begin(identity, attempts)
        if started.died is not None or started.wait:
            self._recorded.remove(identity)
        return started

    async def finish(self, identity: Identity) -> None:
        await self._run_markers.finish(identity)
        if identity in self._recorded:
            self._recorded.remove(identity)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the record of a run whose death was counted."""
        await self._run_markers.forget(identity, attempts)

    async def close(self) -> None:
        """End what is recorded."""
        for identity in tuple(self._recorded):
            await self.finish(identity)
