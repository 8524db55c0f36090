"""Transports in memory that send to queues and topics of other programs: one keeps the rules, each other breaks one."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from onceonly.formats.cloudevents import encode
from onceonly.model.destination import Destination, Queue, Topic, is_destination, read_destination
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import DestinationRule, Traits, Transport
from onceonly_conformance.destination_suite import Arrival
from onceonly_conformance.transport_suite import TransportSubject
from tests.broken_adapters.wrapped_transports import WrappedTransports

RULES = (DestinationRule(kind="queue", longest_delay=60.0, names="[A-Z][a-z]+"), DestinationRule(kind="topic"))


class Kept(NamedTuple):
    """A message in a queue or a topic of another program."""

    due: int
    arrival: Arrival


class CarefulDestinations(WrappedTransports):
    """Keeps every rule. Queues delay messages, topics do not."""

    rules = RULES

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self.kept: dict[Destination, list[Kept]] = {}

    def traits(self, inner: Transport) -> Traits:
        """Add the rules."""
        return replace(inner.traits, destinations=self.rules)

    async def create(self) -> tuple[Destination, ...]:
        """Create a queue and a topic."""
        self.kept |= {Queue("Sales"): [], Topic("orders/eu"): []}
        return Queue("Sales"), Topic("orders/eu")

    async def missing(self) -> tuple[Destination, ...]:
        """Name another queue and another topic."""
        return Queue("Nothing"), Topic("nothing")

    async def remove(self, destination: Destination) -> None:
        """Delete with all messages."""
        del self.kept[destination]

    async def exists(self, destination: Destination) -> bool:
        """Return whether it was created."""
        return destination in self.kept

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Take what is due: nothing arrives later."""
        await asyncio.sleep(min(wait, 0.0))
        now = self.now()
        found = [each for each in self.kept[destination] if each.due <= now]
        self.kept[destination] = [each for each in self.kept[destination] if each.due > now]
        return [each.arrival for each in found]

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send each for itself."""
        answers: list[Answer] = []
        for send in sends:
            answers += [self.put(inner, send)] if is_destination(send.to) else await inner.send([send])
        return tuple(answers)

    def put(self, inner: Transport, send: Send) -> Answer:
        """Store a message if its destination exists."""
        found = self.find(send.to)
        delays = isinstance(found, Queue)
        if found not in self.kept or len(send.message.body) > inner.traits.max_body or (send.due > self.now() and not delays):
            return Answer.REFUSED
        headers, body = encode(send)
        self.kept[found].append(Kept(send.due, (headers, body)))
        return Answer.TAKEN

    def find(self, to: str) -> Destination | None:
        """Read a destination."""
        return read_destination(to)


class UndeclaredDestinations(CarefulDestinations):
    """Declares other names than there are."""

    rules = (DestinationRule(kind="queue", longest_delay=60.0, names="[a-z]+"), DestinationRule(kind="topic"))


class PrefixingDestinations(CarefulDestinations):
    """Adds the prefix of the URL to a name, and creates what it does not find."""

    def find(self, to: str) -> Destination | None:
        """Change the name."""
        found = super().find(to)
        if found not in self.kept:
            return found
        other = Queue("Tsales") if isinstance(found, Queue) else Topic("t.orders")
        self.kept.setdefault(other, [])
        return other


class HeaderLosingDestinations(CarefulDestinations):
    """Writes attributes only."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Drop the headers of the application."""
        return super().put(inner, replace(send, message=replace(send.message, headers=())))


class RenamingDestinations(CarefulDestinations):
    """Gives each publish an id of its own, as clients of brokers do."""

    number = 0

    def put(self, inner: Transport, send: Send) -> Answer:
        """Count, if the message is a plain one."""
        self.number += send.message.id == "m1"
        id_ = send.message.id if self.number % 2 else f"{send.message.id}-{self.number}"
        return super().put(inner, replace(send, message=replace(send.message, id=id_)))


class DeduplicatingDestinations(CarefulDestinations):
    """Drops what it sent before."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._seen: set[tuple[str, str]] = set()

    def put(self, inner: Transport, send: Send) -> Answer:
        """Answer for all, send the others."""
        name = (send.to, send.message.id)
        if name in self._seen and self.find(send.to) in self.kept:
            return Answer.TAKEN
        self._seen.add(name)
        return super().put(inner, send)


class CreatingDestinations(CarefulDestinations):
    """Creates what is missing, as it does for endpoints."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Create it after the refusal."""
        answer = super().put(inner, send)
        found = self.find(send.to)
        if found is not None:
            self.kept.setdefault(found, [])
        return answer


class SwallowingDestinations(CarefulDestinations):
    """Publishes without a flag that returns what has no queue."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Take what is lost."""
        found = self.find(send.to)
        return Answer.TAKEN if found is not None and found not in self.kept else super().put(inner, send)


class SharedChannelDestinations(CarefulDestinations):
    """Sends on one channel, which the server closes when a destination is missing."""

    async def send(self, inner: Transport, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send nothing behind the first missing one."""
        answers: list[Answer] = []
        for send in sends:
            if Answer.REFUSED in answers and send.message.id != "lost":
                answers.append(Answer.UNKNOWN)
            else:
                answers += await super().send(inner, [send])
        return tuple(answers)


class RememberingDestinations(CarefulDestinations):
    """Looks once whether a destination exists."""

    def __init__(self, inner: TransportSubject) -> None:
        super().__init__(inner)
        self._known: set[str] = set()

    def put(self, inner: Transport, send: Send) -> Answer:
        """Take what was taken before."""
        answer = super().put(inner, send)
        self._known |= {send.to} if answer is Answer.TAKEN else set()
        return Answer.TAKEN if send.to in self._known else answer


class TolerantDestinations(CarefulDestinations):
    """Takes every kind for a queue."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Take a kind that is not declared."""
        found = self.find(send.to)
        declared = {rule.kind for rule in self.rules}
        return super().put(inner, send) if found is None or found.kind in declared else Answer.TAKEN


class PromptDestinations(CarefulDestinations):
    """Ignores delays."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Send at once."""
        return super().put(inner, replace(send, due=0))


class LiteralDestinations(CarefulDestinations):
    """Takes each instant for a delay."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Refuse an instant that has passed."""
        return Answer.REFUSED if 0 < send.due <= self.now() else super().put(inner, send)


class GreedyDestinations(CarefulDestinations):
    """Checks no size."""

    def put(self, inner: Transport, send: Send) -> Answer:
        """Cut the body."""
        body = send.message.body[: inner.traits.max_body]
        return super().put(inner, replace(send, message=replace(send.message, body=body)))
