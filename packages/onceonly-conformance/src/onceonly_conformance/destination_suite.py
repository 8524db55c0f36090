"""The rules of a transport that sends to destinations that are not endpoints. Another program creates them and receives."""

import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol

from msgspec.structs import replace

from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.destination import KINDS, Destination, write_destination
from onceonly.model.message import Headers, Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import DestinationRule, Topology, Traits
from onceonly_conformance.samples import message, rich_message
from onceonly_conformance.suite import ENDPOINT, Suite
from onceonly_conformance.transport_suite import LONG_MS, MANY, TransportSubject, ids_of

SHORT_MS = 2_000
"""A delay that the transport's time passes within a rule."""
Arrival = tuple[Headers, bytes]
"""Headers and body as another program received them, with CloudEvents attributes as headers that begin with `ce-`."""


class DestinationSubject(TransportSubject, Protocol):
    """A transport under test, and another program on its broker."""

    async def create(self) -> tuple[Destination, ...]:
        """Create a destination of each kind that the transport declares, and what is needed to receive from it."""

    async def missing(self) -> tuple[Destination, ...]:
        """Return a destination of each kind that does not exist."""

    async def remove(self, destination: Destination) -> None:
        """Delete a destination as an operator does."""

    async def exists(self, destination: Destination) -> bool:
        """Return whether there is such a destination."""

    async def arrived(self, destination: Destination, wait: float) -> list[Arrival]:
        """Take what has arrived, in order. Wait this many seconds for a first message."""


class DestinationSuite(Suite):
    """The additional rules of a transport with `traits.destinations`. Override `open_destinations`.

    `quiet` is the number of seconds without a message that prove that none arrives.
    """

    quiet: ClassVar[float] = 0.0

    def open_destinations(self) -> AbstractAsyncContextManager[DestinationSubject]:
        """Open a transport without queues for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_the_kinds_and_names_that_are_declared_are_those_that_there_are(self) -> None:
        """Each kind is known, and the names of existing destinations match."""
        async with self.open_destinations() as subject:
            traits = (await subject.transport()).traits
            declared = {rule.kind for rule in traits.destinations}
            assert declared
            assert declared <= KINDS.keys()
            created = await subject.create()
            assert {each.kind for each in created} == declared
            assert [each for each in created if _rule(traits, each) is None] == []

    async def test_a_message_arrives_exactly_as_it_was_sent(self) -> None:
        """The name is used as it is, without a prefix. Every attribute, extension, header and byte arrives."""
        async with self.open_destinations() as subject:
            for destination in await subject.create():
                assert await _send(subject, _to(destination, rich_message())) == (Answer.TAKEN,)
                arrived = await self._arrivals(subject, destination, 1)
                assert [_read(each) for each in arrived] == [_sorted(rich_message())]

    async def test_a_message_that_is_sent_twice_arrives_twice_with_one_id(self) -> None:
        """The transport does not deduplicate. Receivers recognize the copies by the id, the source and the body."""
        async with self.open_destinations() as subject:
            for destination in await subject.create():
                for _ in range(2):
                    assert await _send(subject, _to(destination, message())) == (Answer.TAKEN,)
                arrived = await self._arrivals(subject, destination, 2)
                assert [_read(each) for each in arrived] == [message(), message()]

    async def test_a_missing_destination_is_refused_and_not_created(self) -> None:
        """The answer is `REFUSED`, as for a command that cannot be routed, also at the next attempt."""
        async with self.open_destinations() as subject:
            transport = await subject.transport()
            for destination in await subject.missing():
                for _ in range(2):
                    assert await transport.send([_to(destination, message())]) == (Answer.REFUSED,)
                assert not await subject.exists(destination)

    async def test_a_missing_destination_does_not_affect_other_messages(self) -> None:
        """Of one call, every other message is taken, and arrives once."""
        async with self.open_destinations() as subject:
            transport = await subject.transport()
            await transport.declare([Topology(endpoint=ENDPOINT)])
            missing, created = await subject.missing(), await subject.create()
            sends = [_to(each, message("lost")) for each in missing]
            sends += [_to(each, message("kept")) for each in created]
            sends += [Send(message=message("own"), to=ENDPOINT), *(_to(each, message("lost")) for each in missing)]
            refused, taken = (Answer.REFUSED,) * len(missing), (Answer.TAKEN,) * (len(created) + 1)
            assert await transport.send(sends) == refused + taken + refused
            for destination in created:
                assert [_read(each).id for each in await self._arrivals(subject, destination, 1)] == ["kept"]
            assert ids_of(await transport.receive(MANY, self.patience)) == ["own"]

    async def test_a_destination_that_was_deleted_is_refused(self) -> None:
        """A sender that has sent to it before notices, at the latest when it sends again. Nothing is taken that is lost."""
        async with self.open_destinations() as subject:
            transport = await subject.transport()
            for destination in await subject.create():
                assert await transport.send([_to(destination, message("m1"))]) == (Answer.TAKEN,)
                await subject.remove(destination)
                answers = [(await transport.send([_to(destination, message("m2"))]))[0] for _ in range(2)]
                assert answers[0] in {Answer.REFUSED, Answer.UNKNOWN}
                assert answers[1] is Answer.REFUSED
                assert not await subject.exists(destination)

    async def test_another_kind_is_refused(self) -> None:
        """A kind that is not declared is `REFUSED`, and so is a text that names none."""
        async with self.open_destinations() as subject:
            transport = await subject.transport()
            declared = {rule.kind for rule in transport.traits.destinations}
            texts = [f"{kind}:orders" for kind in KINDS if kind not in declared]
            for text in (*texts, "planet:orders", "queue:", "exchange:#key"):
                assert await transport.send([Send(message=message(), to=text)]) == (Answer.REFUSED,)

    async def test_a_delay_is_kept_or_refused(self) -> None:
        """As far as the rule of the kind declares, nothing arrives before it is due. Any other delay is `REFUSED`."""
        async with self.open_destinations() as subject:
            traits = (await subject.transport()).traits
            for destination in await subject.create():
                rule = _rule(traits, destination)
                assert rule is not None
                if rule.longest_delay == 0:
                    late = _to(destination, message(), due=subject.now() + LONG_MS)
                    assert await _send(subject, late) == (Answer.REFUSED,)
                    assert await subject.arrived(destination, self.quiet) == []
                    continue
                assert await _send(subject, _to(destination, message(), due=subject.now() + SHORT_MS)) == (Answer.TAKEN,)
                assert await subject.arrived(destination, self.quiet) == []
                await subject.pass_time(SHORT_MS)
                assert [_read(each) for each in await self._arrivals(subject, destination, 1)] == [message()]

    async def test_a_message_due_in_the_past_arrives_at_once(self) -> None:
        """An instant that has passed delays nothing."""
        async with self.open_destinations() as subject:
            for destination in await subject.create():
                assert await _send(subject, _to(destination, message(), due=subject.now() - 1)) == (Answer.TAKEN,)
                assert [_read(each) for each in await self._arrivals(subject, destination, 1)] == [message()]

    async def test_a_body_over_the_greatest_size_is_refused(self) -> None:
        """The limit of `traits.max_body` holds for these, too."""
        async with self.open_destinations() as subject:
            large = message(body=bytes((await subject.transport()).traits.max_body + 1))
            for destination in await subject.create():
                assert await _send(subject, _to(destination, large)) == (Answer.REFUSED,)

    async def _arrivals(self, subject: DestinationSubject, destination: Destination, least: int) -> Sequence[Arrival]:
        """Take until `least` messages have arrived, and what arrives after them."""
        found: list[Arrival] = []
        while len(found) < least and (more := await subject.arrived(destination, self.patience)):
            found += more
        assert len(found) >= least, f"{len(found)} of {least} messages arrived at {destination}"
        return [*found, *await subject.arrived(destination, self.quiet)]


def _to(destination: Destination, message: Message, *, due: int = 0) -> Send:
    return Send(message=message, to=write_destination(destination), due=due)


async def _send(subject: DestinationSubject, send: Send) -> tuple[Answer, ...]:
    return await (await subject.transport()).send([send])


def _rule(traits: Traits, destination: Destination) -> DestinationRule | None:
    name: str = getattr(destination, "name", "")
    rules = (each for each in traits.destinations if each.kind == destination.kind)
    return next((each for each in rules if not each.names or re.fullmatch(each.names, name)), None)


def _read(arrival: Arrival) -> Message:
    """Read a message as a program does that knows CloudEvents."""
    event = take_apart(*arrival)
    return _sorted(message_of(event, source=event.attributes["source"], id=event.attributes["id"]))


def _sorted(message: Message) -> Message:
    return replace(message, headers=tuple(sorted(message.headers)))
