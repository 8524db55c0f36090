"""Ports whose every call is enclosed by an observer."""

from collections.abc import Mapping, Sequence

from onceonly.algorithms.effects import NoThings
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, Message, Send, Unreadable
from onceonly.model.record import Answer, Decision, Record
from onceonly.model.remote import Response, requested
from onceonly.model.retry import Verdict
from onceonly.ports.admission import Admission, Admitted
from onceonly.ports.bundle import Ports, Relaying
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.effects import Effects
from onceonly.ports.handlers import Handlers
from onceonly.ports.starts import Deaths, NoStarts, Started, Starts
from onceonly.ports.store import Barred, Resources, Store, Unit
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.runtime.observe.observed_transactions import observed_calls, observed_controls, observed_transactions
from onceonly.runtime.observe.observed_upkeep import observed_upkeep
from onceonly.runtime.observe.observer import Call, Observer, Point


def observed(ports: Ports, observer: Observer | None) -> Ports:
    """Give ports that do the same and let `observer` enclose every call; without one, the very same ports."""
    if observer is None:
        return ports
    endpoint = ports.endpoint
    return Ports(
        endpoint=endpoint,
        store=ObservedStore(ports.store, endpoint, observer),
        handlers=ObservedHandlers(ports.handlers, endpoint, observer),
        admission=ObservedAdmission(ports.admission, endpoint, observer),
        effects=ports.effects if isinstance(ports.effects, NoThings) else ObservedEffects(ports.effects, endpoint, observer),
        transport=ObservedTransport(ports.transport, endpoint, observer),
        dead_letters=ObservedDeadLetters(ports.dead_letters, endpoint, observer),
        upkeep=observed_upkeep(ports.upkeep, endpoint, observer),
        transactions=observed_transactions(ports.transactions, endpoint, observer),
        controls=observed_controls(ports.controls, endpoint, observer),
        calls=observed_calls(ports.calls, endpoint, observer),
        responders=ports.responders,
        starts=ports.starts if isinstance(ports.starts, NoStarts) else ObservedStarts(ports.starts, endpoint, observer),
    )


def observed_relaying(ports: Relaying, observer: Observer) -> tuple[Store, Admission, Effects, Transport]:
    """Give the same of a relay's ports, which are fewer."""
    endpoint, effects = ports.endpoint, ports.effects
    return (
        ObservedStore(ports.store, endpoint, observer),
        ObservedAdmission(ports.admission, endpoint, observer),
        effects if isinstance(effects, NoThings) else ObservedEffects(effects, endpoint, observer),
        ObservedTransport(ports.transport, endpoint, observer),
    )


class ObservedStore:
    """A store whose calls, and whose units' calls, are observed."""

    def __init__(self, store: Store, endpoint: str, observer: Observer) -> None:
        """Enclose this store."""
        self._store, self._endpoint, self._observer = store, endpoint, observer

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Observe `begin`; its unit's commit is observed as well."""
        call = Call(Point.BEGIN, self._endpoint, messages)
        unit: Unit | None = None
        try:
            async with self._observer.around(call):
                call.result = unit = await self._store.begin(messages, isolated=isolated)
        except BaseException:
            if unit is not None:
                unit.abandon()  # the observer raised: nobody else knows this unit
            raise
        return ObservedUnit(unit, self._endpoint, self._observer)

    def keeps(self, record: Record) -> bool:
        """Pass through: nothing happens here."""
        return self._store.keeps(record)

    async def forget(self, records: Sequence[Record]) -> None:
        """Observe `forget`."""
        async with self._observer.around(Call(Point.FORGET, self._endpoint, records)):
            await self._store.forget(records)

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """Observe `undispatched`."""
        call = Call(Point.UNDISPATCHED, self._endpoint)
        async with self._observer.around(call):
            call.result = found = await self._store.undispatched(older_than, limit)
        return found

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Observe `take`."""
        call = Call(Point.TAKE, self._endpoint)
        async with self._observer.around(call):
            call.result = found = await self._store.take(older_than, limit, lease=lease, after=after)
        return found

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Observe `find`."""
        call = Call(Point.FIND, self._endpoint, identities)
        async with self._observer.around(call):
            call.result = found = await self._store.find(identities)
        return found

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Observe `fence`."""
        call = Call(Point.FENCE, self._endpoint)
        async with self._observer.around(call):
            call.result = record = await self._store.fence(unit, identity, message)
        return record

    def unit_key(self, message: Message) -> str:
        """Pass through: nothing happens here."""
        return self._store.unit_key(message)


class ObservedUnit:
    """A unit whose commit is observed; what `begin` found and the resources are the unit's own."""

    def __init__(self, unit: Unit, endpoint: str, observer: Observer) -> None:
        """Enclose this unit."""
        self._unit, self._endpoint, self._observer = unit, endpoint, observer
        self.key: str = unit.key
        self.new: tuple[Message, ...] = unit.new
        self.owed: tuple[Record, ...] = unit.owed
        self.done: tuple[Message, ...] = unit.done
        self.clashing: tuple[Message, ...] = unit.clashing
        self.barred: tuple[Barred, ...] = unit.barred
        self.resources: Resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Observe `commit`."""
        async with self._observer.around(Call(Point.COMMIT, self._endpoint, records)):
            await self._unit.commit(records)

    def abandon(self) -> None:
        """Pass through: it awaits nothing, and nothing of it is ever seen."""
        self._unit.abandon()


class ObservedHandlers:
    """Handlers whose runs are observed."""

    def __init__(self, handlers: Handlers, endpoint: str, observer: Observer) -> None:
        """Enclose these handlers."""
        self._handlers, self._endpoint, self._observer = handlers, endpoint, observer

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Pass through: pure."""
        return self._handlers.read(delivery)

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Observe `handle`."""
        call = Call(Point.HANDLE, self._endpoint, (message,))
        async with self._observer.around(call):
            call.result = decision = await self._handlers.handle(message, resources, attempt, response)
        return decision

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Pass through: pure."""
        return self._handlers.verdict(message, failure, attempts=attempts, history=history)


class ObservedAdmission:
    """An admission whose calls are observed."""

    def __init__(self, admission: Admission, endpoint: str, observer: Observer) -> None:
        """Enclose this admission."""
        self._admission, self._endpoint, self._observer = admission, endpoint, observer

    async def admits(self, messages: Sequence[Message]) -> Admitted:
        """Observe `admits`."""
        call = Call(Point.ADMITS, self._endpoint, messages)
        async with self._observer.around(call):
            call.result = admitted = await self._admission.admits(messages)
        return admitted

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Observe `prepare`."""
        call = Call(Point.PREPARE, self._endpoint, records)
        async with self._observer.around(call):
            call.result = prepared = await self._admission.prepare(records)
        return prepared

    async def activate(self, records: Sequence[Record]) -> None:
        """Observe `activate`."""
        async with self._observer.around(Call(Point.ACTIVATE, self._endpoint, records)):
            await self._admission.activate(records)

    async def discard(self, records: Sequence[Record]) -> None:
        """Observe `discard`."""
        async with self._observer.around(Call(Point.DISCARD, self._endpoint, records)):
            await self._admission.discard(records)

    async def retire(self, records: Sequence[Record]) -> None:
        """Observe `retire`."""
        async with self._observer.around(Call(Point.RETIRE, self._endpoint, records)):
            await self._admission.retire(records)


class ObservedEffects:
    """Effects whose calls are observed."""

    def __init__(self, effects: Effects, endpoint: str, observer: Observer) -> None:
        """Enclose these effects."""
        self._effects, self._endpoint, self._observer = effects, endpoint, observer

    async def register(self, messages: Sequence[Message]) -> Mapping[Identity, str]:
        """Observe `register`."""
        call = Call(Point.REGISTER, self._endpoint, messages)
        async with self._observer.around(call):
            call.result = attempts = await self._effects.register(messages)
        return attempts

    async def make(self, records: Sequence[Record]) -> None:
        """Observe `make`."""
        async with self._observer.around(Call(Point.MAKE, self._endpoint, records)):
            await self._effects.make(records)

    async def discard(self, records: Sequence[Record]) -> None:
        """Observe `discard`, as `unmake`."""
        async with self._observer.around(Call(Point.UNMAKE, self._endpoint, records)):
            await self._effects.discard(records)

    async def clean(self, records: Sequence[Record]) -> None:
        """Observe `clean`."""
        async with self._observer.around(Call(Point.CLEAN, self._endpoint, records)):
            await self._effects.clean(records)

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Observe `call`, where any is made."""
        if not any(record.calls for record in records):
            return await self._effects.call(records)
        call = Call(Point.CALL, self._endpoint, records)
        async with self._observer.around(call):
            call.result = answers = await self._effects.call(records)
        return answers

    async def response(self, message: Message) -> Response | None:
        """Observe `response`, where one is read."""
        if not requested(message):
            return await self._effects.response(message)
        call = Call(Point.RESPONSE, self._endpoint, (message,))
        async with self._observer.around(call):
            call.result = response = await self._effects.response(message)
        return response


class ObservedTransport:
    """A transport whose calls are observed; a send is `dispatch`, or `retry-copy` when it carries copies of what came in."""

    def __init__(self, transport: Transport, endpoint: str, observer: Observer) -> None:
        """Enclose this transport."""
        self._transport, self._endpoint, self._observer = transport, endpoint, observer
        self.traits = transport.traits

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Observe `receive`."""
        call = Call(Point.RECEIVE, self._endpoint)
        async with self._observer.around(call):
            call.result = deliveries = await self._transport.receive(limit, wait)
        return deliveries

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Observe `send`, under the name of what it is for."""
        copies = any(is_retry_copy(send, self._endpoint) for send in sends)
        call = Call(Point.RETRY_COPY if copies else Point.DISPATCH, self._endpoint, sends)
        async with self._observer.around(call):
            call.result = answers = await self._transport.send(sends)
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Observe `ack`."""
        async with self._observer.around(Call(Point.ACK, self._endpoint, deliveries)):
            await self._transport.ack(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Observe `release`."""
        async with self._observer.around(Call(Point.RELEASE, self._endpoint, deliveries)):
            await self._transport.release(deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Observe `extend`."""
        async with self._observer.around(Call(Point.EXTEND, self._endpoint, deliveries)):
            await self._transport.extend(deliveries)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Observe `declare`."""
        async with self._observer.around(Call(Point.DECLARE, self._endpoint, topologies)):
            await self._transport.declare(topologies)

    async def depth(self, endpoint: str) -> Depth:
        """Observe `depth`."""
        call = Call(Point.DEPTH, self._endpoint)
        async with self._observer.around(call):
            call.result = depth = await self._transport.depth(endpoint)
        return depth


class ObservedStarts:
    """Starts whose calls are observed."""

    def __init__(self, starts: Starts, endpoint: str, observer: Observer) -> None:
        """Enclose these starts."""
        self._starts, self._endpoint, self._observer = starts, endpoint, observer

    async def died(self, identities: Sequence[Identity]) -> Deaths:
        """Pass through: what a supervisor saw is in memory."""
        return await self._starts.died(identities)

    async def begin(self, identity: Identity, attempts: int) -> Started:
        """Observe `begin`."""
        call = Call(Point.START, self._endpoint, (identity,))
        async with self._observer.around(call):
            call.result = started = await self._starts.begin(identity, attempts)
        return started

    async def ended(self, identity: Identity) -> None:
        """Observe `ended`."""
        async with self._observer.around(Call(Point.START_ENDED, self._endpoint, (identity,))):
            await self._starts.ended(identity)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Observe `forget`, as `ended`."""
        async with self._observer.around(Call(Point.START_ENDED, self._endpoint, (identity,))):
            await self._starts.forget(identity, attempts)


class ObservedDeadLetters:
    """Dead letters whose calls are observed."""

    def __init__(self, dead_letters: DeadLetters, endpoint: str, observer: Observer) -> None:
        """Enclose these dead letters."""
        self._dead_letters, self._endpoint, self._observer = dead_letters, endpoint, observer

    async def add(self, letter: DeadLetter) -> None:
        """Observe `add`, as `dead-letter`."""
        async with self._observer.around(Call(Point.DEAD_LETTER, self._endpoint, (letter,))):
            await self._dead_letters.add(letter)

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """Observe `page`."""
        call = Call(Point.DEAD_PAGE, self._endpoint)
        async with self._observer.around(call):
            call.result = letters = await self._dead_letters.page(chosen, after=after, limit=limit)
        return letters

    async def get(self, key: str) -> DeadLetter | None:
        """Observe `get`."""
        call = Call(Point.DEAD_GET, self._endpoint)
        async with self._observer.around(call):
            call.result = letter = await self._dead_letters.get(key)
        return letter

    async def count(self, chosen: Filter) -> int:
        """Observe `count`."""
        call = Call(Point.DEAD_COUNT, self._endpoint)
        async with self._observer.around(call):
            call.result = count = await self._dead_letters.count(chosen)
        return count

    async def remove(self, keys: Sequence[str]) -> int:
        """Observe `remove`."""
        call = Call(Point.DEAD_REMOVE, self._endpoint, keys)
        async with self._observer.around(call):
            call.result = removed = await self._dead_letters.remove(keys)
        return removed


def is_retry_copy(send: Send, endpoint: str) -> bool:
    """Tell whether this send brings an incoming message back to its own endpoint.

    It carries what a copy must remember; one put off by its handler carries nothing, but comes from another source.
    """
    remembers = bool(send.attempts or send.alone or send.held or send.history)
    return remembers or (send.to == endpoint and send.message.source != endpoint)
