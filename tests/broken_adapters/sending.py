"""Transports that lose, change or misdirect what is sent, or do not know their queues."""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.errors import SetupError
from onceonly.model.message import PARTITION_KEY, Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly_conformance.transport_suite import TransportSubject
from tests.broken_adapters.wrapped_transports import WrappedTransports


class DeduplicatingTransport(WrappedTransports):
    """Drops what it saw before, as some brokers do for some minutes."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._seen: set[tuple[str, str]] = set()

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Answer for all, send the others."""
        answers: list[Answer] = []
        for send in sends:
            name = (send.to, send.message.id)
            answers += [Answer.TAKEN] if name in self._seen else await inner.send([send])
            self._seen.add(name)
        return tuple(answers)


class HeaderLosingTransport(WrappedTransports):
    """Keeps its own headers only."""

    def post(self, send: Send) -> Send:
        """Drop foreign headers."""
        return replace(send, message=replace(send.message, headers=()))


class HeaderMergingTransport(WrappedTransports):
    """Keeps headers in a mapping, by name."""

    def post(self, send: Send) -> Send:
        """Keep the last of each name."""
        return replace(send, message=replace(send.message, headers=tuple(dict(send.message.headers).items())))


class HeaderShorteningTransport(WrappedTransports):
    """Stores headers in a column of 8 KiB."""

    def post(self, send: Send) -> Send:
        """Drop what does not fit."""
        headers, size = send.message.headers, 0
        fitting = [header for header in headers if (size := size + len(header[0]) + len(header[1])) <= 8192]
        return replace(send, message=replace(send.message, headers=tuple(fitting)))


class DelayedHeaderLosingTransport(WrappedTransports):
    """Stores delayed messages elsewhere, without their headers."""

    def post(self, send: Send) -> Send:
        """Drop the headers of a delayed message."""
        return replace(send, message=replace(send.message, headers=())) if send.due else send


class AttributeAddingTransport(WrappedTransports):
    """Takes every message for a CloudEvent."""

    def post(self, send: Send) -> Send:
        """Add attributes to what another format has written."""
        return replace(send, formatted=False)


class DelayedAttributeAddingTransport(WrappedTransports):
    """Stores delayed messages as CloudEvents."""

    def post(self, send: Send) -> Send:
        """Add attributes to a delayed message."""
        return replace(send, formatted=send.formatted and not send.due)


class ReleasedHeaderLosingTransport(WrappedTransports):
    """Releases a message by sending it again, without its headers."""

    async def release(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Copy, and ack."""
        for delivery in deliveries:
            event = take_apart(delivery.headers, delivery.body)
            copied = message_of(event, source=event.attributes["source"], id=event.attributes["id"])
            await inner.send([Send(message=replace(copied, headers=()), to=delivery.queue)])
        await inner.ack(deliveries)


class KeyConsumingTransport(WrappedTransports):
    """Uses the partition key, and does not deliver it."""

    def post(self, send: Send) -> Send:
        """Drop the key."""
        kept = tuple(each for each in send.message.extensions if each[0] != PARTITION_KEY)
        return replace(send, message=replace(send.message, extensions=kept))


class ExpiringTransport(WrappedTransports):
    """Deletes what has expired, as brokers do with a time to live."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Answer for all, send what has not expired."""
        live = [send for send in sends if not 0 < send.message.expires <= self.now()]
        answers = iter(await inner.send(live))
        return tuple(next(answers) if send in live else Answer.TAKEN for send in sends)


class AmnesicTransport(WrappedTransports):
    """Forgets how often a message failed."""

    def post(self, send: Send) -> Send:
        """Send as if for the first time."""
        return Send(message=send.message, to=send.to, due=send.due)


class ImpatientTransport(WrappedTransports):
    """Knows no delays."""

    def post(self, send: Send) -> Send:
        """Send at once."""
        return replace(send, due=0)


class LateTransport(WrappedTransports):
    """Delivers a little too late."""

    def post(self, send: Send) -> Send:
        """Add a millisecond."""
        return replace(send, due=send.due and send.due + 1)


class MirroringTransport(WrappedTransports):
    """Takes the distance to an instant in the past for a delay."""

    def post(self, send: Send) -> Send:
        """Mirror."""
        return replace(send, due=send.due and self.now() + abs(send.due - self.now()))


class QueueingTransport(WrappedTransports):
    """Delays everything behind a delayed message, as a broker does that looks at the head of its queue only."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._due = 0

    def post(self, send: Send) -> Send:
        """Wait for those in front."""
        self._due = max(self._due, send.due)
        return replace(send, due=self._due)


class TruncatingTransport(WrappedTransports):
    """Cuts what is too long."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Cut."""
        most = inner.traits.max_body
        return await inner.send([replace(s, message=replace(s.message, body=s.message.body[:most])) for s in sends])


class TightTransport(WrappedTransports):
    """Refuses the greatest size that it claims to take."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Be off by one."""
        fits = [len(send.message.body) < inner.traits.max_body for send in sends]
        answers = iter(await inner.send([send for send, fit in zip(sends, fits, strict=True) if fit]))
        return tuple(next(answers) if fit else Answer.REFUSED for fit in fits)


class SwallowingTransport(WrappedTransports):
    """Takes what it cannot route."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Claim success."""
        return tuple(Answer.TAKEN for _ in await inner.send(sends))


class ReversingTransport(WrappedTransports):
    """Answers as the confirmations come in."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Mix up the answers."""
        return (await inner.send(sends))[::-1]


class FussyTransport(WrappedTransports):
    """Cannot send nothing."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Look at the first."""
        return await inner.send([sends[0], *sends[1:]])


class FirstSubscriberTransport(WrappedTransports):
    """Gives an event to one subscriber only."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Make a command of it."""
        return await inner.send([replace(s, to=s.to or min(self.subscribers(s.message.type), default="")) for s in sends])


class BroadcastingTransport(WrappedTransports):
    """Gives a command to those who subscribed to its type, too."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Publish it as well."""
        await inner.send([replace(send, to="") for send in sends if send.to])
        return await inner.send(sends)


class CaselessTransport(WrappedTransports):
    """Matches event types without regard to case."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Match the others as well."""
        for send in sends:
            exact = self.subscribers(send.message.type)
            loose = {queue for event, queue in self.wanted if event.lower() == send.message.type.lower()}
            await inner.send([replace(send, to=queue) for queue in loose - exact if not send.to])
        return await inner.send(sends)


class PickyTransport(WrappedTransports):
    """Refuses an event that nobody wants."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Refuse."""
        answers = await inner.send(sends)
        wanted = [bool(send.to or self.subscribers(send.message.type)) for send in sends]
        return tuple(answer if fine else Answer.REFUSED for answer, fine in zip(answers, wanted, strict=True))


class RecreatingTransport(WrappedTransports):
    """Makes a queue anew when it is declared again."""

    async def declare(self, inner: Transport, topologies: Sequence[Topology]) -> None:
        """Empty it."""
        await inner.declare(topologies)
        await inner.ack(await inner.receive(1000, 0))


class FirstDeclarationTransport(WrappedTransports):
    """Ignores the declaration of a queue it knows."""

    async def declare(self, inner: Transport, topologies: Sequence[Topology]) -> None:
        """Declare the others."""
        new = [topology for topology in topologies if topology.endpoint not in self.declared]
        await inner.declare(new)


class ReplacingTransport(WrappedTransports):
    """Takes a declaration for all that a queue wants from now on."""

    async def declare(self, inner: Transport, topologies: Sequence[Topology]) -> None:
        """Unsubscribe from everything else."""
        known = {
            topology.endpoint: {event for event, queue in self.wanted if queue == topology.endpoint} for topology in topologies
        }
        await inner.declare(
            [replace(each, gone=tuple(known[each.endpoint] - {*each.events}) + each.gone) for each in topologies]
        )


class FaithfulTransport(WrappedTransports):
    """Never ends a subscription."""

    async def declare(self, inner: Transport, topologies: Sequence[Topology]) -> None:
        """Declare the rest."""
        await inner.declare([replace(topology, gone=()) for topology in topologies])


class RoughDepthTransport(WrappedTransports):
    """Counts everything as waiting."""

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Add up."""
        depth = await inner.depth(endpoint, events)
        return Depth(waiting=depth.waiting + depth.held + depth.delayed, held=0, delayed=0)


class SharedDelayTransport(WrappedTransports):
    """Counts what is delayed for all endpoints, as if they shared one queue for it."""

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Add up what is delayed."""
        depth = await inner.depth(endpoint, events)
        depths = [await inner.depth(each, events) for each in sorted(self.declared)]
        return replace(depth, delayed=sum(each.delayed for each in depths))


class CommandDelayTransport(WrappedTransports):
    """Counts no delayed event."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._events = 0

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Count the delayed events."""
        self._events += sum(1 for send in sends if send.due and not send.to)
        return await inner.send(sends)

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Leave them out."""
        depth = await inner.depth(endpoint, events)
        return replace(depth, delayed=max(0, depth.delayed - self._events))


class PessimisticDepthTransport(WrappedTransports):
    """Counts what was handed out once as held until it is acked."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._held: Counter[str] = Counter()

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Count up."""
        got = await inner.receive(limit, wait)
        self._held.update(delivery.queue for delivery in got)
        return got

    async def ack(self, inner: Transport, deliveries: Sequence[Delivery]) -> None:
        """Count down."""
        self._held.subtract(delivery.queue for delivery in deliveries)
        await inner.ack(deliveries)

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Trust the own count."""
        depth = await inner.depth(endpoint, events)
        held = self._held[endpoint]
        return Depth(waiting=depth.waiting + depth.held - held, held=held, delayed=depth.delayed)


class ZeroDepthTransport(WrappedTransports):
    """Takes an unknown queue for an empty one."""

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Hide the error."""
        try:
            return await inner.depth(endpoint, events)
        except SetupError:
            return Depth(waiting=0, held=0, delayed=0)


class FirstDestinationTransport(WrappedTransports):
    """Sends all commands of one call to the endpoint of the first."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Misdirect the others."""
        first = next((send.to for send in sends if send.to in self.declared), "")
        return await super().send(inner, [replace(send, to=first) if send.to in self.declared else send for send in sends])


class TypeCuttingTransport(WrappedTransports):
    """Tells event types apart by their first 100 characters."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Match the others as well."""
        for send in sends:
            exact = self.subscribers(send.message.type)
            loose = {queue for event, queue in self.wanted if event[:100] == send.message.type[:100]}
            await inner.send([replace(send, to=queue) for queue in loose - exact if not send.to])
        return await inner.send(sends)


class PromptEventTransport(WrappedTransports):
    """Delays commands only."""

    def post(self, send: Send) -> Send:
        """Send an event at once."""
        return replace(send, due=send.due if send.to else 0)


class PostponingTransport(WrappedTransports):
    """Lets a delayed message wait for another second when a receiver comes too early."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._delayed: list[Send] = []

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Keep what is delayed."""
        self._delayed += [send for send in sends if send.due > self.now()]
        await inner.send([send for send in sends if send.due <= self.now()])
        return (Answer.TAKEN,) * len(sends)

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Send what is due, and postpone the rest."""
        now = self.now()
        await inner.send([send for send in self._delayed if send.due <= now])
        self._delayed = [replace(send, due=now + 1000) for send in self._delayed if send.due > now]
        return await inner.receive(limit, wait)


class BusyDepthTransport(WrappedTransports):
    """Counts a delivery for each receiver that waits."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._waiting = 0

    async def receive(self, inner: Transport, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Count one more."""
        self._waiting += 1
        try:
            return await inner.receive(limit, wait)
        finally:
            self._waiting -= 1

    async def depth(self, inner: Transport, endpoint: str, events: Sequence[str]) -> Depth:
        """Add them."""
        depth = await inner.depth(endpoint, events)
        return replace(depth, held=depth.held + self._waiting)
