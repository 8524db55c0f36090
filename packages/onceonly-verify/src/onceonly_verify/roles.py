"""What the workers of a world do: which program, on which endpoint, and what sets it going. Data, one row for each kind."""

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, combinations
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import WorldPart
from onceonly.formats.cloudevents import PREFIX
from onceonly.model.errors import RetryableError
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly_verify.clock import is_to_come
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.invariants.reports import reported
from onceonly_verify.names import name_of
from onceonly_verify.programs import Programs
from onceonly_verify.time_steps import STEP, skew_of, unskewed
from onceonly_verify.workload import DeduplicationMode, Workload
from onceonly_verify.workload_ports import place_of, ports_of

Batch = tuple[Delivery, ...]
Begun = tuple[Any, Batch]
"""The broker afterwards, and what a worker has to work on; its first receipt names the run."""


def receive_batches(broker: Any, role: "Role", transports: Any) -> Iterator[Begun]:
    """Take any deliveries in any number: a later one may come before an earlier one. Equal ones are interchangeable.

    In full batches, take the first ones in order, as many as a batch may have.
    """
    lease = transports.Lease(transports.NEVER - 1, transports.NEVER)
    taken, offered = transports.receive(broker, role.queue, len(broker.entries), lease) or (broker, ())
    deliveries = {delivery.receipt.number: delivery for delivery in offered}
    held = {entry.number: entry for entry in taken.entries}
    free = [entry for entry in broker.entries if entry.number in deliveries]
    if role.is_full:
        if free:
            yield transports.receive(broker, role.queue, role.batch, lease)
        return
    seen = set()
    for chosen in chain.from_iterable(combinations(free, size) for size in range(1, role.batch + 1)):
        alike = tuple((entry.headers, entry.body, entry.times, entry.suspect) for entry in chosen)
        if alike not in seen:
            seen.add(alike)
            numbers = [entry.number for entry in chosen]
            left = (entry for entry in broker.entries if entry.number not in numbers)
            after = replace(taken, entries=(*(held[number] for number in numbers), *left))
            yield after, tuple(deliveries[number] for number in numbers)


def deliver_batch(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Run the shipping delivery shell, and all below it."""
    return _deliver_batch(programs, batch, ports, isolated=False)


def deliver_batch_isolated(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Run it as a worker does in which a handler has failed lately."""
    return _deliver_batch(programs, batch, ports, isolated=True)


def _deliver_batch(programs: Programs, batch: Batch, ports: Ports, *, isolated: bool) -> Coroutine[Any, Any, Any]:
    deliver, handlers = programs.delivery.deliver, cast("Any", ports.handlers)
    batch = _prefixed(batch, handlers.workload.prefix)
    transport = programs.redelivery.PatientTransport(ports.transport) if handlers.workload.patient else None
    ports = ports._replace(transport=transport) if transport else ports
    alone: Coroutine[Any, Any, Any] = (
        reported(deliver, batch, ports, isolated=isolated) if programs.has_log else deliver(batch, ports, isolated=isolated)
    )
    return _deliver_and_release(alone, transport) if transport else alone


async def _deliver_and_release(work: Coroutine[Any, Any, Any], transport: Any) -> Any:
    """Deliver, then release what is left, however often it takes, as a worker does before it receives again."""
    report = await work
    while transport.left:
        with suppress(RetryableError):
            await transport.give_back()
    return report


def _prefixed(batch: Batch, prefix: str) -> Batch:
    """Return a batch as a broker delivers it that has another prefix for the names of attributes."""
    if prefix == PREFIX:
        return batch
    return tuple(
        replace(each, headers=tuple((name.replace(PREFIX, prefix, 1), value) for name, value in each.headers)) for each in batch
    )


class Role(Struct, frozen=True, kw_only=True):
    """One kind of worker: `begins` gives what may set an idle one going, `program` is what it then does on `endpoint`.

    All that begins comes from `queue`, which no other role has; no broker need know it. In steps a beginning is called
    `point`, and `label` comes before each call: it is empty where there is no other endpoint.
    """

    endpoint: str
    queue: str
    point: str = "receive"
    label: str = ""
    finishes: bool = False
    """Whether it finishes the records of its endpoint's store: with it, there is no rest while there are any."""
    sweeps: tuple[str, ...] = ()
    """The places in which it removes what is left: with it, there is no rest while there is any, and it wakes only then.

    That it does so before nothing else is left to do has a bound: an attempt that is overtaken every time never ends.
    """
    has_peers: bool = True
    """Whether its processes are set up to call other services."""
    is_patient: bool = False
    """Whether it waits for a time only: until then it wakes up and changes nothing."""
    reaches: tuple[str, ...] = ()
    """Calls that it must make somewhere, where the check does not say so."""
    workers: int = 1
    batch: int = 1
    is_hosted: bool = False
    """Whether a host hands over what it works on. The host's time may end."""
    is_full: bool = False
    """Whether it takes full batches only, in the order of the queue."""
    begins: Callable[[Any, "Role", Any], Iterator[Begun]] = receive_batches
    program: Callable[[Programs, Batch, Ports], Coroutine[Any, Any, Any]] = deliver_batch
    waits: Callable[[Mapping[str, Any], Any, Batch], bool] | None = None
    """Tells by the stores, and by the broker as it was, that something does not set it going yet."""


def redelivered(role: Role, batch: Batch) -> tuple[str, ...]:
    """Name the messages of which a host counts one more delivery: each may count as a failure."""
    return tuple(sorted({name_of(each.body.decode()) for each in batch})) if role.is_hosted else ()


def sharing(broker: Any, role: "Role", transports: Any) -> Iterator[Begun]:
    """Take deliveries from the endpoint's own queue, as its other workers do, but under this role's name."""
    for world, batch in receive_batches(broker, replace(role, queue=role.endpoint), transports):
        yield world, tuple(replace(delivery, queue=role.queue) for delivery in batch)


def stale_roles(workload: Workload, *, workers: int, batch: int) -> tuple[Role, ...]:
    """Return workers of the first endpoint whose processes were started before any change of the retention."""
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=f"{workload.endpoints[0]}, started before",
            label=f"{workload.labels[0]}started before: ",
            workers=workers,
            batch=batch,
            begins=sharing,
            waits=is_to_come,
            program=deliver_batch_as_before,
        ),
    )[: 1 if workers else 0]


def deliver_batch_as_before(programs: Programs, batch: Batch, ports: Ports) -> Coroutine[Any, Any, Any]:
    """Run the shipping delivery shell in a process that has read its rings before any change."""
    cast("Any", ports.store).started_early()
    return deliver_batch(programs, batch, ports)


def peerless_roles(workload: Workload, *, workers: int, batch: int) -> tuple[Role, ...]:
    """Return workers of the first endpoint without the setting for other services.

    They get full batches that others have handled, and give them back: a delivery comes to them twice at most.
    """
    return (
        Role(
            endpoint=workload.endpoints[0],
            queue=f"{workload.endpoints[0]}, without peers",
            label=f"{workload.labels[0]}without peers: ",
            workers=workers,
            reaches=("release",),
            batch=batch,
            begins=sharing,
            has_peers=False,
            waits=partial(_is_new, size=batch),
        ),
    )[: 1 if workers else 0]


PEERLESS_MOST = 2
"""The last delivery of a copy that a worker without peers may take."""


def _is_new(worlds: Mapping[str, Any], _broker: Any, batch: Batch, *, size: int) -> bool:
    claimed = {identity.id for world in worlds.values() for identity, _ in getattr(world, "claims", ())}
    receipts: list[Any] = [delivery.receipt for delivery in batch]
    if len(batch) < size or any(receipt.times > PEERLESS_MOST for receipt in receipts):
        return True
    return any(dict(delivery.headers)["ce-id"] not in claimed for delivery in batch)


def endpoint_roles(
    workload: Workload, *, workers: int, batch: int, isolated: bool = False, full: bool = False
) -> tuple[Role, ...]:
    """Return workers of each endpoint, of which each takes so many deliveries at once."""
    waits = is_to_come if workload.deduplication is DeduplicationMode.RING else None
    program = deliver_batch_isolated if isolated else deliver_batch
    return tuple(
        Role(
            endpoint=endpoint,
            queue=endpoint,
            label=label,
            workers=workers,
            batch=batch,
            is_full=full,
            waits=waits,
            program=program,
        )
        for endpoint, label in zip(workload.endpoints, workload.labels, strict=True)
    )


class Cast:
    """The roles of one world, and the start of their programs. Number n of a worker is: idle, in the n-th role."""

    def __init__(self, workload: Workload, programs: Programs, roles: tuple[Role, ...]) -> None:
        self._workload = workload
        self._programs = programs
        self.roles = roles
        self.idle = tuple(number for number, role in enumerate(roles) for _ in range(role.workers))
        self.finished = tuple(dict.fromkeys(self.store_of(role).name for role in roles if role.finishes))
        """The stores whose records do not rest."""
        self.swept = tuple(dict.fromkeys(name for role in roles for name in role.sweeps))
        """The places where nothing that can be swept rests."""
        self._numbers = {role.queue: number for number, role in enumerate(roles)}

    def number(self, batch: Batch) -> int:
        return self._numbers[batch[0].queue]

    def role(self, batch: Batch) -> Role:
        return self.roles[self.number(batch)]

    def label_at(self, queue: str) -> str:
        """Return what comes before what happens in a queue."""
        return next((role.label for role in self.roles if role.queue == queue), "")

    def store_of(self, role: Role) -> WorldPart:
        """Return which part of the world is the store of a role's endpoint."""
        return place_of(self._workload, self._programs, role.endpoint)

    def start(self, batch: Batch) -> tuple[CheckerDriver, Coroutine[Any, Any, Any]]:
        """Begin what a worker does with one batch."""
        driver = CheckerDriver(batch[0].receipt)
        return driver, self.program(batch, driver)

    def program(self, batch: Batch, driver: CheckerDriver) -> Coroutine[Any, Any, Any]:
        """Return what a worker does with one batch, not begun, on this driver."""
        role = self.role(batch)
        driver.skew = skew_of(batch) * STEP
        ports = ports_of(self._workload, self._programs, driver, endpoint=role.endpoint, has_peers=role.has_peers)
        return role.program(self._programs, unskewed(batch), ports)
