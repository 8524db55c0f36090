"""The rules of a transport on a broker whose queues a person administers: queues that are full, and queues that are deleted."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology, Transport
from onceonly_conformance.samples import message
from onceonly_conformance.suite import ENDPOINT, Suite, steps
from onceonly_conformance.transport_suite import EVENT, MANY, TransportSubject, ids_of

DELAY_MS, DELETED_MS = 100, 2000
"""Milliseconds until a message is due, and for which its queue is deleted."""


class BrokerSubject(TransportSubject, Protocol):
    """A transport under test whose queues a rule can limit and delete."""

    async def limit(self, endpoint: str, most: int) -> None:
        """Create the endpoint's queue as an operator does: it accepts about `most` waiting messages, and refuses others."""

    async def delete(self, endpoint: str) -> None:
        """Delete the endpoint's queue as an operator does."""


class BrokerSuite(Suite):
    """The additional rules of a transport on a broker. Override `open_broker`."""

    def open_broker(self) -> AbstractAsyncContextManager[BrokerSubject]:
        """Open a transport without queues for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_what_a_full_queue_refuses_is_not_taken(self) -> None:
        """The answer is `TAKEN` for exactly those messages of a call that the queue has accepted.

        It is `UNKNOWN` for the others. They are sent again, because a queue is full only for some time.
        """
        sent = [f"m{number}" for number in range(6)]
        async with self.open_broker() as subject:
            await subject.limit(ENDPOINT, 2)
            answers = await (await subject.transport()).send([_command(name) for name in sent])
            taken = [name for name, answer in zip(sent, answers, strict=True) if answer is Answer.TAKEN]
            assert len(taken) < len(sent)
            assert {*answers} <= {Answer.TAKEN, Answer.UNKNOWN}
            assert await self._received(subject, taken) == set(taken)

    async def test_a_delivery_that_a_full_queue_refuses_back_is_not_lost(self) -> None:
        """If `release` raises a RetryableError, the message is delivered again when its lease ends. Otherwise at once."""
        async with self.open_broker() as subject:
            await subject.limit(ENDPOINT, 1)
            sender, receiver = await subject.transport(), await subject.transport()
            assert await sender.send([_command("m0")]) == (Answer.TAKEN,)
            held = await receiver.receive(1, self.patience)
            taken = [*ids_of(held), *await _filled(sender)]
            try:
                await receiver.release(held)
            except RetryableError:
                await subject.lapse()
            assert await self._received(subject, taken) == set(taken)

    async def test_what_is_due_while_its_queue_is_deleted_arrives_when_it_is_declared_again(self) -> None:
        """Delayed commands and delayed events wait for the queue that they are for."""
        topology = Topology(endpoint=ENDPOINT, events=(EVENT,))
        async with self.open_broker() as subject:
            transport = await subject.transport()
            await transport.declare([topology])
            due = subject.now() + DELAY_MS
            sends = [_command("command", due), Send(message=message("event"), due=due)]
            assert await transport.send(sends) == (Answer.TAKEN, Answer.TAKEN)
            await subject.delete(ENDPOINT)
            await subject.pass_time(DELETED_MS)
            await transport.declare([topology])
            assert await self._received(subject, ["command", "event"]) == {"command", "event"}

    async def test_a_command_to_a_deleted_queue_is_refused(self) -> None:
        """A sender that has sent to the queue before notices that it is deleted, and that it is declared again."""
        async with self.open_broker() as subject:
            transport = await subject.transport()
            await transport.declare([Topology(endpoint=ENDPOINT)])
            assert await transport.send([_command("m1")]) == (Answer.TAKEN,)
            await subject.delete(ENDPOINT)
            assert await transport.send([_command("m2")]) == (Answer.REFUSED,)
            await transport.declare([Topology(endpoint=ENDPOINT)])
            assert await transport.send([_command("m3")]) == (Answer.TAKEN,)
            assert await self._received(subject, ["m3"]) == {"m3"}

    async def test_a_release_into_a_deleted_queue_fails(self) -> None:
        """`release` raises a RetryableError or a SetupError, or the message is in the queue that is declared next."""
        async with self.open_broker() as subject:
            receiver = await subject.transport()
            await receiver.declare([Topology(endpoint=ENDPOINT)])
            assert await receiver.send([_command("m1")]) == (Answer.TAKEN,)
            held = await receiver.receive(1, self.patience)
            await subject.delete(ENDPOINT)
            try:
                await receiver.release(held)
            except (RetryableError, SetupError):
                return
            await receiver.declare([Topology(endpoint=ENDPOINT)])
            assert await self._received(subject, ["m1"]) == {"m1"}

    async def test_a_receiver_works_on_when_its_queue_is_declared_again(self) -> None:
        """A `receive` that waits while its queue is deleted may raise. Otherwise it returns what comes then."""
        async with self.open_broker() as subject:
            receiver, other = await subject.transport(), await subject.transport()
            await other.declare([Topology(endpoint=ENDPOINT)])
            assert await other.send([_command("m1")]) == (Answer.TAKEN,)
            await receiver.ack(await receiver.receive(1, self.patience))
            waiting = asyncio.create_task(receiver.receive(1, self.patience))
            await steps(10)
            await subject.delete(ENDPOINT)
            await subject.pass_time(DELETED_MS)
            await other.declare([Topology(endpoint=ENDPOINT)])
            assert await other.send([_command("m2")]) == (Answer.TAKEN,)
            try:
                got = await waiting
            except (RetryableError, SetupError):
                got = await receiver.receive(1, self.patience)
            assert ids_of(got) == ["m2"]

    async def _received(self, subject: BrokerSubject, expected: list[str]) -> set[str]:
        """Receive and ack until all expected messages have arrived, or none arrives for a long time."""
        receiver = await subject.transport()
        got: set[str] = set()
        while not got.issuperset(expected) and (more := await receiver.receive(MANY, self.patience)):
            got |= set(ids_of(more))
            await receiver.ack(more)
        return got


async def _filled(sender: Transport) -> list[str]:
    """Send until the queue refuses a message. Return the names of those that it accepted."""
    taken: list[str] = []
    while len(taken) < MANY:
        name = f"filler {len(taken)}"
        if await sender.send([_command(name)]) != (Answer.TAKEN,):
            return taken
        taken.append(name)
    raise AssertionError(f"a queue with a limit of one message accepted {len(taken)}")


def _command(name: str, due: int = 0) -> Send:
    return Send(message=message(name), to=ENDPOINT, due=due)
