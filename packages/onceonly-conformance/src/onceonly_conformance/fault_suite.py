"""The rules of a transport whose broker fails: connections that break in the middle of a call, restarts, and lost data."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import count
from typing import ClassVar, Protocol, TypeVar

from msgspec.structs import replace

from onceonly.model.errors import RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology, Transport
from onceonly_conformance.samples import message
from onceonly_conformance.suite import ENDPOINT, Suite
from onceonly_conformance.transport_suite import EVENT, MANY, TransportSubject, ids_of

LONG_MS = 60_000  # a delay that a slow machine does not reach within a rule
PAUSE_SECONDS = 0.02  # between two attempts
MOST_REQUESTS = 100  # that the calls of a rule make
EARLY_REQUESTS = 30
"""Requests after which a receiver has put off a message that it looked for too early. It may do so again and again."""
_Result = TypeVar("_Result")


class FaultySubject(TransportSubject, Protocol):
    """A transport under test whose broker fails where a rule applies."""

    async def breaking(self, request: int, *, arrives: bool) -> tuple[Transport, Callable[[], bool]]:
        """Open the endpoint's transport. Its connection breaks with this request to the broker, counted from 1.

        With `arrives` the request reaches the broker, and its answer is lost. Later connections do not break. The second
        value shows whether the connection has broken.
        """

    async def restart(self) -> None:
        """Restart the broker, or delete what a restart deletes and cut every connection."""

    async def reset(self) -> None:
        """Delete all queues and messages, and cut every connection, as if the broker was installed again."""


class FaultSuite(Suite):
    """The rules of a transport whose broker fails. Override `open_faulty`.

    `quiet` is the number of seconds without a message that prove that none arrives.
    """

    quiet: ClassVar[float] = 0.0

    def open_faulty(self) -> AbstractAsyncContextManager[FaultySubject]:
        """Open a transport without queues for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_declaration_whose_connection_breaks_can_be_repeated(self) -> None:
        """`declare` raises a RetryableError, or everything is declared."""
        async with self.open_faulty() as subject:
            numbers = count(1)
            async for transport in self._breaking(subject, arrives=False):
                number = next(numbers)
                endpoint, kind = f"shop{number}", f"shop.kind{number}"
                topology = Topology(endpoint=endpoint, events=(kind,), gone=(EVENT,))
                await self._repeated(partial(transport.declare, [topology]))
                other = await subject.transport(endpoint)
                sends = [Send(message=message("command"), to=endpoint), Send(message=replace(message("event"), type=kind))]
                assert await other.send(sends) == (Answer.TAKEN, Answer.TAKEN)
                await self._receive(other, {"command", "event"})

    async def test_events_and_delays_survive_a_connection_that_breaks(self) -> None:
        """`send` raises a RetryableError or answers `UNKNOWN`, and works when it is repeated. What is `TAKEN` arrives."""
        sent: set[str] = set()
        async with self.open_faulty() as subject:
            await (await subject.transport()).declare([Topology(endpoint=ENDPOINT, events=(EVENT,))])
            due = subject.now() + 1_000
            async for transport in self._breaking(subject, arrives=False):
                names = [f"{what} {len(sent)}" for what in ("event", "late event", "late command")]
                await self._send_until_taken(
                    transport,
                    [
                        Send(message=message(names[0])),
                        Send(message=message(names[1]), due=due),
                        Send(message=message(names[2]), to=ENDPOINT, due=due),
                    ],
                )
                sent.update(names)
            await subject.pass_time(1_000)
            await self._receive(await subject.transport(), sent)

    async def test_a_message_that_a_broken_connection_lost_is_not_taken(self) -> None:
        """The answer is `TAKEN` only if the broker has confirmed the message. The transport connects again."""
        taken: set[str] = set()
        async with self.open_faulty() as subject:
            await (await subject.transport()).declare([Topology(endpoint=ENDPOINT)])
            for arrives in (False, True):
                async for transport in self._breaking(subject, arrives=arrives):
                    name = f"m{len(taken)}"
                    with suppress(RetryableError):
                        if await transport.send([_command(name)]) == (Answer.TAKEN,):
                            taken.add(name)
                    await self._send_until_taken(transport, [_command(f"{name} again")])
                    taken.add(f"{name} again")
            await self._receive(await subject.transport(), taken)

    async def test_a_delivery_whose_connection_breaks_is_delivered_again(self) -> None:
        """`receive`, `release` and `ack` raise a RetryableError, or they work. Others get what was not acked.

        They get it at once, or when its lease has ended.
        """
        async with self.open_faulty() as subject:
            await (await subject.transport()).declare([Topology(endpoint=ENDPOINT)])
            for arrives in (False, True):
                async for transport in self._breaking(subject, arrives=arrives):
                    other, left = await subject.transport(), {"m1", "m2"}
                    assert await other.send([_command(name) for name in sorted(left)]) == (Answer.TAKEN, Answer.TAKEN)
                    with suppress(RetryableError):
                        held = await transport.receive(1, self.patience)
                        left -= set(ids_of(held))
                        await transport.ack(held)
                    with suppress(RetryableError):
                        await transport.release(await transport.receive(1, self.patience))
                    if transport.traits.lease is not None:
                        await subject.lapse()
                    await self._receive(other, left)

    async def test_a_message_that_comes_too_early_survives_a_connection_that_breaks(self) -> None:
        """A receiver that cannot put off a delayed message returns nothing or raises a RetryableError."""
        async with self.open_faulty() as subject:
            plain = await subject.transport()
            await plain.declare([Topology(endpoint=ENDPOINT)])
            assert await plain.send([_command("m1", subject.now() + 5_000)]) == (Answer.TAKEN,)
            await subject.pass_time(4_999)
            assert await plain.receive(MANY, self.quiet) == ()
            async for transport in self._breaking(subject, arrives=False, most=EARLY_REQUESTS):
                with suppress(RetryableError):
                    assert await transport.receive(MANY, self.quiet) == ()
            await subject.pass_time(1)
            await self._receive(await subject.transport(), {"m1"})

    async def test_a_depth_that_is_counted_on_a_connection_that_breaks_is_correct(self) -> None:
        """`depth` raises a RetryableError, or counts everything. A message that is moved may be counted in both places."""
        async with self.open_faulty() as subject:
            plain = await subject.transport()
            await plain.declare([Topology(endpoint=ENDPOINT, events=(EVENT,))])
            sends = [_command("m1"), Send(message=message("m2"), due=subject.now() + LONG_MS)]
            assert await plain.send(sends) == (Answer.TAKEN, Answer.TAKEN)
            async for transport in self._breaking(subject, arrives=False):
                depth = await self._repeated(partial(transport.depth, ENDPOINT, (EVENT,)))
                async with asyncio.timeout(self.patience):
                    while (depth.waiting, depth.delayed) == (2, 1):  # a tested delay is over, and its message is on the way
                        depth = await self._repeated(partial(transport.depth, ENDPOINT, (EVENT,)))
                assert (depth.waiting + depth.delayed, depth.held) == (2, 0)

    async def test_what_was_taken_survives_a_restart(self) -> None:
        """The broker has stored durably what is `TAKEN`, and its queues and subscriptions."""
        async with self.open_faulty() as subject:
            transport = await subject.transport()
            await transport.declare([Topology(endpoint=ENDPOINT, events=(EVENT,))])
            sends, names = _of_each_kind(subject.now() + 1_000)
            assert await transport.send(sends) == (Answer.TAKEN,) * len(sends)
            await subject.restart()
            await subject.pass_time(1_000)
            await self._receive(await subject.transport(), names)

    async def test_a_transport_works_on_when_the_broker_has_lost_everything(self) -> None:
        """Once the endpoint has declared its queue again, senders and receivers that were open before work as before."""
        topology = Topology(endpoint=ENDPOINT, events=(EVENT,))
        async with self.open_faulty() as subject:
            transport = await subject.transport()
            for _ in range(2):
                await (await subject.transport()).declare([topology])
                sends, names = _of_each_kind(subject.now() + 1_000)
                await self._send_until_taken(transport, sends)
                await subject.pass_time(1_000)
                await self._receive(transport, names)
                await subject.reset()

    async def _breaking(self, subject: FaultySubject, *, arrives: bool, most: int = MOST_REQUESTS) -> AsyncIterator[Transport]:
        """Open transports whose connections break with the first request, the second, and so on, until one does not break."""
        for request in range(1, most + 1):
            transport, has_broken = await subject.breaking(request, arrives=arrives)
            yield transport
            if not has_broken():
                return

    async def _repeated(self, call: Callable[[], Awaitable[_Result]]) -> _Result:
        """Repeat a call until it raises no RetryableError."""
        async with asyncio.timeout(self.patience):
            while True:
                try:
                    return await call()
                except RetryableError:
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _send_until_taken(self, transport: Transport, sends: Sequence[Send]) -> None:
        """Send again what is not `TAKEN`, as endpoints do."""
        left = list(sends)
        async with asyncio.timeout(self.patience):
            while left:
                answers = await self._repeated(partial(transport.send, left))
                assert Answer.REFUSED not in answers
                left = [send for send, answer in zip(left, answers, strict=True) if answer is not Answer.TAKEN]

    async def _receive(self, receiver: Transport, names: set[str]) -> None:
        """Receive and ack until all of these messages have arrived. Copies of them may arrive as well."""
        missing = set(names)
        while missing:
            got = await self._repeated(partial(receiver.receive, MANY, self.patience))
            assert got, f"these messages do not arrive: {sorted(missing)}"
            missing.difference_update(ids_of(got))
            with suppress(RetryableError):
                await receiver.ack(got)


def _command(name: str, due: int = 0) -> Send:
    return Send(message=message(name), to=ENDPOINT, due=due)


def _of_each_kind(due: int) -> tuple[list[Send], set[str]]:
    """Return a command and an event, each with and without a delay, and their names."""
    sends = [Send(message=message(f"{to or 'event'} {when}"), to=to, due=when) for to in (ENDPOINT, "") for when in (0, due)]
    return sends, {send.message.id for send in sends}
