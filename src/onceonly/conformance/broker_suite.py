"""The rules of a transport on a broker whose queues a person administers: queues that are full, and queues that are deleted."""

from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from onceonly.conformance.samples import message
from onceonly.conformance.suite import ENDPOINT, Suite
from onceonly.conformance.transport_suite import EVENT, MANY, TransportSubject, ids_of
from onceonly.model.errors import RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology, Transport

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
        """The answer is `TAKEN` for exactly those messages of a call that the queue has accepted."""
        sent = [f"m{number}" for number in range(6)]
        async with self.open_broker() as subject:
            await subject.limit(ENDPOINT, 2)
            answers = await (await subject.transport()).send([_command(name) for name in sent])
            taken = [name for name, answer in zip(sent, answers, strict=True) if answer is Answer.TAKEN]
            assert len(taken) < len(sent)
            assert await self._received(subject, taken) == set(taken)

    async def test_a_delivery_that_a_full_queue_refuses_back_is_not_lost(self) -> None:
        """`release` raises a RetryableError or works. In both cases the message is delivered again."""
        async with self.open_broker() as subject:
            await subject.limit(ENDPOINT, 1)
            sender, receiver = await subject.transport(), await subject.transport()
            assert await sender.send([_command("m0")]) == (Answer.TAKEN,)
            held = await receiver.receive(1, self.patience)
            taken = [*ids_of(held), *await _filled(sender)]
            with suppress(RetryableError):
                await receiver.release(held)
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
