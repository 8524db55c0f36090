"""The contract of the Transport port, rule by rule. Senders, receivers and observers run as separate processes."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, Protocol

from msgspec.structs import replace

from onceonly.formats.cloudevents import attribute_of, message_of, take_apart
from onceonly.model.errors import RetryableError, SetupError
from onceonly.model.headers import MOST_HEADER_BYTES
from onceonly.model.limits import MOST_HISTORY, SHORT
from onceonly.model.message import EXPIRES, PARTITION_KEY, Delivery, Message, Send, expiry_text
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, FanOut, Topology, Traits, Transport
from onceonly_conformance.samples import failures, message, rich_message
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite, moments, raises, steps

EVENT = message().type
AGES_SECONDS = 3600.0
DAY_MS = 24 * 3600 * 1000
VERY_LONG_MS = 400 * DAY_MS  # a delay for brokers that declare no limit
LONG_MS = 60_000  # a delay that a slow machine does not reach within a rule
MANY = 100
TIMES = 21
"""Deliveries of one message. RabbitMQ 4 allows 20, unless a queue has another limit."""


class TransportSubject(Protocol):
    async def transport(self, endpoint: str = ENDPOINT) -> Transport:
        """Open an endpoint's transport. Each call opens it as a separate process would."""

    async def ahead(self, endpoint: str, milliseconds: int) -> Transport:
        """Open it as a process whose own clock is ahead by this much. The transport itself has the correct time."""

    def now(self) -> int:
        """Return the transport's time, in milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the transport's time pass. Delays become due, and leases that are shorter than this end."""

    async def lapse(self) -> None:
        """End every lease, as if each receiver had lost its connection or been silent for too long."""


class TransportSuite(Suite):
    """The rules of a transport. Override `open_transport`.

    `quiet` is the number of seconds without a message that prove that none arrives. `destinations` is the number of endpoints
    that one call sends to. Set it above what one request of the system names, if that is limited. `late_suspects` is the number
    of messages, of 12 that arrive while a receive is cancelled, that the system may mark as if their receiver had died.
    """

    quiet: ClassVar[float] = 0.0
    destinations: ClassVar[int] = 3
    late_suspects: ClassVar[int] = 0

    def open_transport(self) -> AbstractAsyncContextManager[TransportSubject]:
        """Open a transport without queues for one rule, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def _queue(self, *ids: str) -> AsyncIterator[TransportSubject]:
        """Open a transport whose endpoint has a queue with these messages."""
        async with self.open_transport() as subject:
            await _declare(subject)
            if ids:
                await _put(subject, *ids, declare=False)
            yield subject

    # What the transport declares

    async def test_the_traits_are_possible_and_the_same_for_every_endpoint(self) -> None:
        """A sender reads those of its own transport, and sends to any endpoint."""
        async with self.open_transport() as subject:
            traits = [(await subject.transport(endpoint)).traits for endpoint in (ENDPOINT, OTHER)]
            assert traits[0] == traits[1]
            assert _impossible(traits[0]) == []

    async def test_keys_keep_their_order_if_that_is_declared(self) -> None:
        """With `orders_keys`, messages with one key are received as they were sent, by one receiver at a time."""
        async with self._queue() as subject:
            transport, other = await subject.transport(), await subject.transport()
            if not transport.traits.orders_keys:
                return
            names = [f"m{number}" for number in range(12)]
            keyed = [replace(message(name), extensions=((PARTITION_KEY, "A"),)) for name in names]
            assert await _send(subject, *(Send(message=each, to=ENDPOINT) for each in keyed)) == (Answer.TAKEN,) * len(names)
            got: list[str] = []
            while len(got) < len(names):
                taken = await self._take(transport, 5)
                assert taken
                assert await other.receive(MANY, self.quiet) == ()
                got += ids_of(taken)
                await transport.ack(taken)
            assert got == names

    async def test_a_delay_beyond_the_longest_that_is_declared_is_kept(self) -> None:
        """A delay longer than `longest_delay` is not cut. `None` means that there is none."""
        async with self._queue() as subject:
            longest = (await subject.transport()).traits.longest_delay
            delay = VERY_LONG_MS if longest is None else round(longest * 1000) + LONG_MS
            sends = [Send(message=message("late"), to=ENDPOINT, due=subject.now() + delay)]
            assert await _send(subject, *sends) == (Answer.TAKEN,)
            assert await self._take_none(subject)

    async def test_delayed_events_go_to_the_subscribers_that_are_declared(self) -> None:
        """With `late_subscribers`, an endpoint that subscribes before the event is due gets it. Otherwise it does not."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)), Topology(endpoint=OTHER))
            assert await _send(subject, Send(message=message(), due=subject.now() + 2_000)) == (Answer.TAKEN,)
            await _declare(subject, Topology(endpoint=OTHER, events=(EVENT,)))
            await subject.pass_time(2_000)
            is_late = (await subject.transport()).traits.late_subscribers
            for name, expected in ((ENDPOINT, ["m1"]), (OTHER, ["m1"] if is_late else [])):
                got = await self._drained(await subject.transport(name), len(expected))
                assert ids_of(got + await self._take_all(subject, name, least=0)) == expected

    # What arrives

    async def test_a_message_arrives_once_when_it_is_acked(self) -> None:
        """A message is not delivered again after its ack, even when leases end."""
        async with self._queue("m1") as subject:
            receiver = await subject.transport()
            delivery = await self._take_one(receiver)
            await receiver.ack([delivery])
            await subject.lapse()
            assert ids_of([delivery]) == ["m1"]
            assert await self._take_none(subject)

    async def test_the_same_id_sent_twice_arrives_twice(self) -> None:
        """The transport does not deduplicate."""
        async with self._queue("m1", "m1") as subject:
            await _put(subject, "m1")
            assert ids_of(await self._take_all(subject, least=3)) == ["m1", "m1", "m1"]

    async def test_a_message_arrives_as_it_was_sent(self) -> None:
        """The transport preserves every attribute, extension and header, in any script, and every byte of the body."""
        async with self._queue() as subject:
            await _send(subject, Send(message=rich_message(), to=ENDPOINT))
            delivery = await self._take_one(await subject.transport())
            assert _message(delivery) == _sorted(rich_message())

    async def test_a_header_that_is_repeated_arrives_as_often(self) -> None:
        """The transport delivers each header of one name, in their order."""
        repeated = replace(message(), headers=(("x-shop", "b"), ("x-shop", "a"), ("x-till", "1"), ("x-shop", "b")))
        async with self._queue() as subject:
            await _send(subject, Send(message=repeated, to=ENDPOINT))
            delivery = await self._take_one(await subject.transport())
            got = take_apart(delivery.headers, delivery.body).headers
            assert [value for name, value in got if name == "x-shop"] == ["b", "a", "b"]
            assert [value for name, value in got if name == "x-till"] == ["1"]

    async def test_the_greatest_headers_arrive(self) -> None:
        """Headers of 16 KiB are delivered, also by a retry copy with its history."""
        names = [f"x-header-{number}" for number in range(4)]
        filler = MOST_HEADER_BYTES // len(names) - len(names[0])
        headers = tuple((name, "x" * filler) for name in names)
        large = replace(rich_message(), headers=headers)
        async with self._queue() as subject:
            copy = Send(message=large, to=ENDPOINT, attempts=MOST_HISTORY, history=failures() * (MOST_HISTORY // 2))
            assert await _send(subject, Send(message=large, to=ENDPOINT), copy) == (Answer.TAKEN, Answer.TAKEN)
            got = await self._take_all(subject, least=2)
            assert [(_message(each), len(each.history)) for each in got] == [(large, 0), (large, MOST_HISTORY)]

    async def test_a_delayed_message_arrives_as_it_was_sent(self) -> None:
        """A delay changes no attribute, extension or header."""
        async with self._queue() as subject:
            await _send(subject, Send(message=rich_message(), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(5_000)
            assert [_message(each) for each in await self._take_all(subject)] == [_sorted(rich_message())]

    async def test_a_released_message_arrives_as_it_was_sent(self) -> None:
        """A release changes no attribute, extension or header."""
        async with self._queue() as subject:
            await _send(subject, Send(message=rich_message(), to=ENDPOINT))
            receiver = await subject.transport()
            await receiver.release([await self._take_one(receiver)])
            assert [_message(each) for each in await self._take_all(subject)] == [_sorted(rich_message())]

    async def test_a_message_of_another_format_arrives_as_it_was_written(self) -> None:
        """A message with `formatted` has its own headers and bytes, and no attributes, also after a release."""
        async with self._queue() as subject:
            receiver = await subject.transport()
            written = _written(receiver.traits)
            assert await _send(subject, Send(message=written, to=ENDPOINT, formatted=True)) == (Answer.TAKEN,)
            first = await self._take_one(receiver)
            await receiver.release([first])
            again = await self._take_one(receiver)
            assert [_changed(written, each) for each in (first, again)] == ["", ""]

    async def test_a_delayed_message_of_another_format_arrives_as_it_was_written(self) -> None:
        """A delay adds no attributes to a message with `formatted`."""
        async with self._queue() as subject:
            receiver = await subject.transport()
            written = _written(receiver.traits)
            send = Send(message=written, to=ENDPOINT, due=subject.now() + 5_000, formatted=True)
            assert await _send(subject, send) == (Answer.TAKEN,)
            await subject.pass_time(5_000)
            assert _changed(written, await self._take_one(receiver)) == ""

    async def test_a_partition_key_arrives(self) -> None:
        """A transport may use the key of the group or partition, and delivers it."""
        keyed = replace(message(), extensions=((PARTITION_KEY, "customer 7"),))
        async with self._queue() as subject:
            await _send(subject, Send(message=keyed, to=ENDPOINT))
            assert [_message(each).partition_key for each in await self._take_all(subject)] == ["customer 7"]

    async def test_an_expired_message_arrives(self) -> None:
        """The transport deletes no message because it has expired. Its endpoint stores it as a dead letter."""
        async with self._queue() as subject:
            past, soon = expiry_text(subject.now() - 1), expiry_text(subject.now() + 1)
            sends = [Send(message=replace(message(each), extensions=((EXPIRES, each),)), to=ENDPOINT) for each in (past, soon)]
            assert await _send(subject, *sends) == (Answer.TAKEN, Answer.TAKEN)
            await subject.pass_time(2)
            got = [_message(each) for each in await self._take_all(subject, least=2)]
            assert sorted(expiry_text(each.expires) for each in got) == [past, soon]

    async def test_an_empty_body_arrives_empty(self) -> None:
        """An empty body is delivered as an empty body, not as null."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message(body=b""), to=ENDPOINT))
            delivery = await self._take_one(await subject.transport())
            assert _message(delivery) == message(body=b"")

    async def test_a_retry_copy_keeps_what_it_remembers(self) -> None:
        """A retry copy preserves `attempts`, `history`, `alone` and `held`."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message(), to=ENDPOINT, attempts=7, history=failures(), alone=True, held=3))
            delivery = await self._take_one(await subject.transport())
            assert (delivery.attempts, delivery.history, delivery.alone, delivery.held) == (7, failures(), True, 3)

    async def test_a_first_copy_remembers_nothing(self) -> None:
        """A first copy has no attempts and no history, is not alone, and was not held before."""
        async with self._queue("m1") as subject:
            delivery = await self._take_one(await subject.transport())
            assert (delivery.attempts, delivery.history, delivery.alone, delivery.held) == (0, (), False, 0)

    async def test_a_delivery_names_its_queue(self) -> None:
        """`queue` is the endpoint's queue. It is the source of foreign messages."""
        async with self._queue("m1") as subject:
            assert [delivery.queue for delivery in await self._take_all(subject)] == [ENDPOINT]

    # Receiving

    async def test_receive_takes_at_most_the_limit(self) -> None:
        """`receive` returns at most `limit` deliveries. Later calls return the others."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver = await subject.transport()
            first = await self._take(receiver, limit=2)
            assert 1 <= len(first) <= 2
            await receiver.ack(first)
            assert sorted(ids_of(first) + ids_of(await self._take_all(subject, least=3 - len(first)))) == ["m1", "m2", "m3"]

    async def test_receive_does_not_wait_to_fill(self) -> None:
        """`receive` returns a single available message at once, whatever `limit` and `wait` are."""
        async with self._queue("m1") as subject:
            async with asyncio.timeout(self.patience):
                assert ids_of(await (await subject.transport()).receive(MANY, AGES_SECONDS)) == ["m1"]

    async def test_receive_is_empty_when_nothing_comes(self) -> None:
        """`receive` returns an empty result when `wait` is over."""
        async with self._queue() as subject:
            async with asyncio.timeout(self.patience):
                assert await (await subject.transport()).receive(MANY, self.quiet) == ()

    async def test_a_waiting_receive_wakes_when_a_message_comes(self) -> None:
        """A waiting `receive` returns when a message arrives, before `wait` is over."""
        async with self._queue() as subject:
            receiver = await subject.transport()
            waiting = asyncio.create_task(receiver.receive(MANY, AGES_SECONDS))
            await steps(10)
            await _put(subject, "m1")
            async with asyncio.timeout(self.patience):
                assert ids_of(await waiting) == ["m1"]

    async def test_a_cancelled_receive_loses_nothing(self) -> None:
        """A message that a cancelled `receive` was taking is delivered to another receiver.

        It is not a suspect, with `late_suspects` exceptions, and no lease has to end first.
        """
        async with self._queue() as subject:
            suspects = 0
            for turns in range(12):
                waiting = asyncio.create_task((await subject.transport()).receive(MANY, AGES_SECONDS))
                await steps(5)
                putting = asyncio.create_task(_put(subject, f"m{turns}"))
                await steps(turns)
                waiting.cancel()
                await asyncio.wait([waiting, putting])
                got = waiting.result() if not waiting.cancelled() else await self._take(await subject.transport())
                assert ids_of(got) == [f"m{turns}"]
                suspects += got[0].suspect
                await (await subject.transport()).ack(got)
            assert suspects <= self.late_suspects

    async def test_a_receive_that_is_cancelled_at_any_moment_loses_nothing(self) -> None:
        """A message that waits is delivered to the next receiver, and no lease has to end first.

        `receive` is cancelled later and later, until it is not any more.
        """
        async with self._queue() as subject:
            receiver, other = await subject.transport(), await subject.transport()
            await receiver.receive(MANY, self.quiet)  # connects
            for turns in moments():
                await _put(subject, f"m{turns}", declare=False)
                receiving = asyncio.create_task(receiver.receive(MANY, self.patience))
                await steps(turns)
                receiving.cancel()
                await asyncio.wait([receiving])
                if not receiving.cancelled():
                    assert ids_of(receiving.result()) == [f"m{turns}"]
                    break
                got = await self._take(other)
                assert ids_of(got) == [f"m{turns}"]
                await other.ack(got)

    async def test_receivers_never_share_a_delivery(self) -> None:
        """When receivers compete, each message is delivered to exactly one of them."""
        sent = [f"m{number}" for number in range(40)]
        async with self._queue(*sent) as subject:
            got: list[str] = []
            await asyncio.gather(*(self._compete(subject, limit, got, len(sent)) for limit in (1, 3, 5, 7)))
            assert sorted(got) == sorted(sent)
            assert await self._take_none(subject)

    async def test_a_held_delivery_is_not_given_to_another(self) -> None:
        """A held delivery is not delivered to another receiver before its lease ends."""
        async with self._queue("m1") as subject:
            await self._take(await subject.transport())
            assert await self._take_none(subject)

    async def test_a_receiver_keeps_only_what_it_returned(self) -> None:
        """What `receive` did not return is delivered to other receivers, once. It is not a suspect."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver, other = await subject.transport(), await subject.transport()
            held = await self._drained(receiver, 1)
            rest = await self._drained(other, 2)
            assert sorted(ids_of(held + rest)) == ["m1", "m2", "m3"]
            assert not any(each.suspect for each in rest)
            assert await receiver.receive(MANY, self.quiet) == ()
            await receiver.ack(held)
            await other.ack(rest)
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_a_receiver_that_holds_many_receives_more(self) -> None:
        """Deliveries that a process holds do not keep others from it, with any `limit`. It takes only what it returns."""
        names = [f"m{number:02}" for number in range(40)]
        async with self._queue(*names) as subject:
            receiver = await subject.transport()
            held = [await self._take_one(receiver, limit=1) for _ in names]
            assert sorted(ids_of(held)) == names
            await receiver.ack(held)
            assert await receiver.receive(1, self.quiet) == ()
            others = [f"other {number}" for number in range(8)]
            await _put(subject, *others, declare=False)
            assert sorted(ids_of(await self._drained(await subject.transport(), len(others)))) == others

    async def test_calls_of_one_transport_may_overlap(self) -> None:
        """Concurrent calls of one transport lose nothing, share nothing, and settle exactly what they name."""
        names = [f"m{number}" for number in range(12)]
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            transport = await subject.transport()
            sends = [Send(message=message(name), to=ENDPOINT if number % 2 else "") for number, name in enumerate(names)]
            answers = await asyncio.gather(*(transport.send([send]) for send in sends))
            assert answers == [(Answer.TAKEN,)] * len(names)
            released, left = set[str](), {*names}
            got = await asyncio.gather(*(self._handle_twice(transport, limit, released, left) for limit in (1, 2, 3)))
            assert sorted(name for each in got for name in each) == sorted(names * 2)
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_a_message_for_one_endpoint_is_not_given_to_another(self) -> None:
        """Each endpoint has its own queue."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER))
            await _put(subject, "m1")
            assert await self._take_none(subject, OTHER)
            assert ids_of(await self._take_all(subject)) == ["m1"]

    # Leases

    async def test_a_first_delivery_is_no_suspect(self) -> None:
        """A message that was not held before is not a suspect."""
        async with self._queue("m1") as subject:
            assert [delivery.suspect for delivery in await self._take_all(subject)] == [False]

    async def test_a_delivery_whose_lease_ended_comes_again_as_a_suspect(self) -> None:
        """A delivery whose lease has ended is redelivered as a suspect. It may have crashed the process that held it."""
        async with self._queue("m1") as subject:
            await self._take(await subject.transport())
            await subject.lapse()
            again = await self._take_one(await subject.transport())
            assert (ids_of([again]), again.suspect) == (["m1"], True)

    async def test_a_transport_works_on_when_its_leases_have_ended(self) -> None:
        """It sends, receives and settles as before, also if the connection was lost with the leases. `depth` is correct."""
        async with self.open_transport() as subject:
            transport = await subject.transport()
            await transport.declare([Topology(endpoint=ENDPOINT, events=(EVENT,))])
            await _put(subject, "m1", "m2", declare=False)
            await self._take_one(transport, limit=1)
            await subject.lapse()
            due = subject.now() + 1_000
            sends = [
                Send(message=message(name), to=to, due=when)
                for name, to, when in (("c1", ENDPOINT, 0), ("c2", ENDPOINT, due), ("e1", "", 0), ("e2", "", due))
            ]
            assert await transport.send(sends) == (Answer.TAKEN,) * len(sends)
            await subject.pass_time(1_000)
            got = await self._drained(transport, 6)
            assert sorted(ids_of(got)) == ["c1", "c2", "e1", "e2", "m1", "m2"]
            depth = await (await subject.transport()).depth(ENDPOINT)
            assert (depth.waiting + depth.held, depth.delayed) == (6, 0)
            await transport.release(got[:1])
            await transport.ack(got[1:])
            again = await self._take_one(transport)
            assert ids_of([again]) == ids_of(got[:1])
            assert again.suspect <= self.late_suspects  # it may have arrived while its receiver rested
            await transport.ack([again])
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_a_process_that_holds_a_delivery_again_cannot_settle_the_former_one(self) -> None:
        """After its lease a process may receive a message again. An `ack` or `release` of the former delivery does nothing."""
        async with self._queue("m1") as subject:
            receiver = await subject.transport()
            former = await self._take(receiver)
            await subject.lapse()
            assert ids_of([await self._take_one(receiver)]) == ["m1"]
            await receiver.release(former)
            assert await self._take_none(subject)
            await receiver.ack(former)
            await subject.lapse()
            assert ids_of(await self._take(await subject.transport())) == ["m1"]

    async def test_a_message_that_was_held_very_often_arrives(self) -> None:
        """The broker has no limit of deliveries. The endpoint counts failures, and stores dead letters."""
        async with self._queue("m1") as subject:
            for _ in range(TIMES):
                await self._take_one(await subject.transport())
                await subject.lapse()
            assert ids_of(await self._take(await subject.transport())) == ["m1"]

    async def test_a_receive_that_waits_while_leases_end_goes_on(self) -> None:
        """It returns what comes later. If its connection was lost, it may raise a RetryableError, and the next one returns."""
        async with self._queue() as subject:
            receiver = await subject.transport()
            assert await receiver.receive(MANY, self.quiet) == ()
            waiting = asyncio.create_task(receiver.receive(MANY, AGES_SECONDS))
            await steps(10)
            await subject.lapse()
            await _put(subject, "m1")
            async with asyncio.timeout(self.patience):
                try:
                    got = await waiting
                except RetryableError:
                    got = await self._take(receiver)
            assert ids_of(got) == ["m1"]

    async def test_a_receiver_whose_clock_is_ahead_hides_nothing(self) -> None:
        """What such a receiver holds is redelivered when the lease ends. What it releases or sends is delivered at once."""
        async with self._queue("m1", "m2") as subject:
            ahead = await subject.ahead(ENDPOINT, DAY_MS)
            taken = await self._drained(ahead, 2)
            kept = [each for each in taken if ids_of([each]) == ["m2"]]
            await ahead.release([each for each in taken if each not in kept])
            await ahead.send([Send(message=message("m3"), to=ENDPOINT)])
            receiver = await subject.transport()
            here = await self._drained(receiver, 2)
            assert sorted(ids_of(here)) == ["m1", "m3"]
            await ahead.extend(kept)
            await receiver.ack(here)
            await subject.lapse()
            assert ids_of(await self._drained(await subject.transport(), 1)) == ["m2"]

    async def test_a_released_delivery_comes_again_at_once_and_is_no_suspect(self) -> None:
        """A released delivery is available to every receiver at once, before its lease ends. It is not a suspect."""
        async with self._queue("m1", "m2") as subject:
            receiver = await subject.transport()
            await receiver.release(await self._drained(receiver, 2))
            again = await self._drained(await subject.transport(), 2)
            assert sorted((*ids_of(again), *(str(each.suspect) for each in again))) == ["False", "False", "m1", "m2"]

    async def test_a_release_gives_back_only_what_it_names(self) -> None:
        """`release` affects only the deliveries passed to it. The holder keeps the others of the batch."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.release([each for each in held if ids_of([each]) == ["m2"]])
            assert ids_of(await self._take_all(subject)) == ["m2"]

    async def test_releasing_a_suspect_clears_it(self) -> None:
        """A suspect that was released is not a suspect when it is delivered again."""
        async with self._queue("m1") as subject:
            await self._take(await subject.transport())
            await subject.lapse()
            receiver = await subject.transport()
            await receiver.release(await self._take(receiver))
            again = await self._take_one(await subject.transport())
            assert again.suspect is False

    async def test_extending_keeps_a_delivery(self) -> None:
        """`extend` restarts the lease of the deliveries that it names, and of no other."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver, other = await subject.transport(), await subject.transport()
            held, left = await self._drained(receiver, 2), await self._drained(other, 1)
            assert receiver.traits.lease is not None
            most_of_it = int(receiver.traits.lease * 750)
            await subject.pass_time(most_of_it)
            await receiver.extend(held)
            await subject.pass_time(most_of_it)
            assert ids_of(await self._take_all(subject)) == ids_of(left)
            await receiver.ack(held)
            await subject.lapse()
            assert ids_of(await self._take_all(subject)) == ids_of(left)

    async def test_extending_too_late_does_nothing(self) -> None:
        """`extend` does not restore a lease that has ended. Another receiver may hold the delivery."""
        async with self._queue("m1") as subject:
            receiver = await subject.transport()
            held = await self._take(receiver)
            await subject.lapse()
            await receiver.extend(held)
            again = await self._take_one(await subject.transport())
            await receiver.extend(held)
            await subject.lapse()
            assert again.suspect
            assert ids_of(await self._take(await subject.transport())) == ["m1"]

    async def test_a_late_ack_does_not_take_the_delivery_of_another(self) -> None:
        """An ack by a previous holder does not settle the delivery. Only an ack by the current holder does."""
        async with self._queue("m1") as subject:
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            receiver = await subject.transport()
            again = await self._take(receiver)
            await slow.ack(held)
            await receiver.release(again)
            assert ids_of(await self._take_all(subject)) == ["m1"]

    async def test_a_late_release_does_not_take_the_delivery_of_another(self) -> None:
        """A release by a previous holder has no effect. The current holder keeps the delivery."""
        async with self._queue("m1") as subject:
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            await self._take(await subject.transport())
            await slow.release(held)
            assert await self._take_none(subject)

    async def test_a_late_ack_is_harmless(self) -> None:
        """After a late ack, a delivery without a new holder is settled or redelivered. Other messages are not affected."""
        async with self._queue("m1") as subject:
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            await slow.ack(held)
            await _put(subject, "m2")
            assert "m2" in ids_of(await self._take_all(subject))

    async def test_acking_twice_is_harmless(self) -> None:
        """Repeated acks have no effect, also for several deliveries in one call."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack(held[:2])
            await receiver.ack(held[:2])
            await receiver.ack(held)
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_deliveries_of_several_calls_are_settled_at_once(self) -> None:
        """One `ack` or `release` may name deliveries that several calls of `receive` have returned."""
        async with self._queue("m1", "m2", "m3", "m4") as subject:
            receiver = await subject.transport()
            held = [await self._take_one(receiver, limit=1) for _ in range(4)]
            await receiver.ack(held[:2])
            await receiver.release(held[2:])
            again = await self._drained(await subject.transport(), 2)
            assert sorted(ids_of(again)) == sorted(ids_of(held[2:]))
            assert not any(each.suspect for each in again)
            await subject.lapse()
            assert sorted(ids_of(await self._take_all(subject, least=2))) == sorted(ids_of(held[2:]))

    async def test_an_ack_settles_only_what_it_names(self) -> None:
        """`ack` settles only the deliveries passed to it. The others of the batch are redelivered."""
        async with self._queue("m1", "m2", "m3") as subject:
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack([each for each in held if ids_of([each]) != ["m2"]])
            await subject.lapse()
            assert ids_of(await self._take_all(subject)) == ["m2"]

    # Sending

    async def test_a_command_goes_to_its_endpoint_only(self) -> None:
        """A command is not delivered to other endpoints, even if they subscribe to its type."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER, events=(EVENT,)))
            assert await _send(subject, Send(message=message(), to=ENDPOINT)) == (Answer.TAKEN,)
            assert await self._take_none(subject, OTHER)
            assert ids_of(await self._take_all(subject)) == ["m1"]

    async def test_a_command_that_cannot_be_routed_is_refused(self) -> None:
        """A command to an endpoint that was not declared is refused, also with a delay."""
        async with self._queue() as subject:
            sends = [Send(message=message(), to="nobody", due=due) for due in (0, subject.now() + LONG_MS)]
            assert await _send(subject, *sends) == (Answer.REFUSED, Answer.REFUSED)

    async def test_answers_are_in_the_order_of_the_sends(self) -> None:
        """Answers are in the order of the sends. A refused send does not affect the others."""
        sends = [Send(message=message(f"m{n}"), to="nobody" if n in (0, 3) else ENDPOINT) for n in range(5)]
        async with self._queue() as subject:
            answers = await _send(subject, *sends)
            assert [answer is Answer.REFUSED for answer in answers] == [True, False, False, True, False]
            assert sorted(ids_of(await self._take_all(subject, least=3))) == ["m1", "m2", "m4"]

    async def test_very_many_messages_are_sent_received_and_settled_at_once(self) -> None:
        """Each call accepts more messages than one request of the system. An ack settles exactly those that it names."""
        asked = [f"m{number}" for number in range(self.many)]
        async with self._queue(*asked) as subject:
            receiver = await subject.transport()
            held = await self._drained(receiver, self.many)
            assert sorted(ids_of(held)) == sorted(asked)
            assert await self._take_none(subject)
            await receiver.ack(held[1:-1])
            await receiver.release([held[0], held[-1]])
            await subject.lapse()
            assert sorted(ids_of(await self._take_all(subject, least=2))) == sorted(ids_of([held[0], held[-1]]))

    async def test_very_many_deliveries_are_released_at_once(self) -> None:
        """`release` accepts more deliveries than one request of the system. Each comes again, and none is a suspect.

        They come to the same receiver. Another one might end that receiver's consumer while deliveries are on the way to it.
        """
        asked = [f"m{number}" for number in range(self.many)]
        async with self._queue(*asked) as subject:
            receiver = await subject.transport()
            await receiver.release(await self._drained(receiver, self.many))
            again = await self._drained(receiver, self.many)
            assert sorted(ids_of(again)) == sorted(asked)
            assert not any(each.suspect for each in again)

    async def test_one_call_sends_to_several_endpoints_and_of_several_types(self) -> None:
        """Commands to several endpoints and events of several types reach their queues from one call."""
        names = [ENDPOINT, OTHER, "audit", *(f"e{number}" for number in range(self.destinations - 3))]
        kinds = ("shop.other.v1", EVENT, *(f"kind{number}" for number in range(self.destinations - 3)))
        async with self.open_transport() as subject:
            await _declare(subject, *(Topology(endpoint=name, events=kinds if name == names[-1] else ()) for name in names))
            commands = [Send(message=message(f"c{number}"), to=name) for number, name in enumerate(names)]
            events = [Send(message=replace(message(kind), type=kind)) for kind in kinds]
            assert await _send(subject, *commands, *events) == (Answer.TAKEN,) * (len(names) + len(kinds))
            for number, name in ((0, names[0]), (1, names[1])):
                assert ids_of(await self._take_all(subject, name)) == [f"c{number}"]
            last = ids_of(await self._take_all(subject, names[-1], least=1 + len(kinds)))
            assert sorted(last) == sorted([f"c{len(names) - 1}", *kinds])

    async def test_sending_nothing_answers_nothing(self) -> None:
        """Every call accepts an empty list."""
        async with self._queue() as subject:
            transport = await subject.transport()
            await transport.ack([])
            await transport.release([])
            await transport.extend([])
            assert await transport.send([]) == ()

    async def test_an_event_goes_to_every_endpoint_that_subscribed(self) -> None:
        """Each subscribed endpoint receives one copy of an event. Other endpoints receive none."""
        async with self.open_transport() as subject:
            topologies = [Topology(endpoint=name, events=events) for name, events in _SUBSCRIBED.items()]
            await _declare(subject, *topologies)
            assert await _send(subject, Send(message=message())) == (Answer.TAKEN,)
            expected = {name: ["m1"] if EVENT in events else [] for name, events in _SUBSCRIBED.items()}
            got = {name: ids_of(await self._take_all(subject, name, least=len(ids))) for name, ids in expected.items()}
            assert got == expected

    async def test_long_types_and_types_in_any_script_are_told_apart(self) -> None:
        """An event has exactly the subscribers of its type, whatever its name is, with and without a delay."""
        kinds = ["x" * (SHORT - 1) + last for last in "abc"] + [f"shop.köln → 東京 / № {number}" for number in (7, 8)]
        wanted = kinds[0], kinds[1], kinds[3]
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=wanted))
            due = subject.now() + 1_000
            sends = [
                Send(message=replace(message(f"{number} at {when}"), type=kind), due=when)
                for number, kind in enumerate(kinds)
                for when in (0, due)
            ]
            assert await _send(subject, *sends) == (Answer.TAKEN,) * len(sends)
            await subject.pass_time(1_000)
            expected = [f"{number} at {when}" for number in (0, 1, 3) for when in (0, due)]
            got = await self._drained(await subject.transport(), len(expected))
            assert sorted(ids_of(got + await self._take_all(subject, least=0))) == expected

    async def test_an_event_is_matched_by_its_exact_type(self) -> None:
        """Subscriptions match the exact type. They are case-sensitive, and support no prefixes and no wildcards."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT.upper(), EVENT[:-1], EVENT + "0", "%", "*", "#")))
            await _send(subject, Send(message=message()))
            assert await self._take_none(subject)

    async def test_an_event_nobody_subscribed_to_is_taken(self) -> None:
        """An event without subscribers is accepted, also before any queue exists. This is not an error."""
        async with self.open_transport() as subject:
            late = replace(message(), type="shop.late.v1")
            sends = Send(message=message()), Send(message=late, due=subject.now() + LONG_MS)
            assert [await _send(subject, each) for each in sends] == [(Answer.TAKEN,)] * 2
            await _declare(subject)
            assert [await _send(subject, each) for each in sends] == [(Answer.TAKEN,)] * 2
            assert await self._take_none(subject)

    async def test_a_body_of_the_greatest_size_arrives(self) -> None:
        """A body of `traits.max_body` bytes is delivered."""
        async with self._queue() as subject:
            body = bytes((await subject.transport()).traits.max_body)
            assert await _send(subject, Send(message=message(body=body), to=ENDPOINT)) == (Answer.TAKEN,)
            assert [each.body for each in await self._take_all(subject)] == [body]

    async def test_a_body_over_the_greatest_size_is_refused(self) -> None:
        """A body larger than `traits.max_body` is refused, both in commands and in events.

        Other sends of the call are accepted.
        """
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            large = message("large", body=bytes((await subject.transport()).traits.max_body + 1))
            assert await _send(subject, Send(message=large, to=ENDPOINT), Send(message=large)) == (Answer.REFUSED,) * 2
            sends = (Send(message=large, to=ENDPOINT), Send(message=large), Send(message=message(), to=ENDPOINT))
            assert await _send(subject, *sends) == (Answer.REFUSED, Answer.REFUSED, Answer.TAKEN)
            assert ids_of(await self._take_all(subject)) == ["m1"]

    # Delays

    async def test_a_delayed_message_is_not_delivered_before_it_is_due(self) -> None:
        """A delayed message is not delivered even a millisecond before `due`."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(4_999)
            assert await self._take_none(subject)

    async def test_a_delayed_message_is_delivered_when_it_is_due(self) -> None:
        """A delayed message is delivered at `due`. It is not a suspect, because it was not held before."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(5_000)
            assert [each.suspect for each in await self._take_all(subject)] == [False]

    async def test_a_delayed_message_that_was_looked_for_too_early_is_not_late(self) -> None:
        """Receivers that come before `due` get the other messages. It is not late. Short delays stay short."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message("late"), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(4_999)
            await _put(subject, "m1", "m2")
            assert sorted(ids_of(await self._take_all(subject, least=2))) == ["m1", "m2"]
            await subject.pass_time(1)
            assert ids_of(await self._take_all(subject)) == ["late"]
            await _send(subject, Send(message=message("soon"), to=ENDPOINT, due=subject.now() + 200))
            await subject.pass_time(200)
            assert ids_of(await self._take_all(subject)) == ["soon"]

    async def test_a_delayed_event_goes_to_every_endpoint_that_subscribed(self) -> None:
        """Each subscribed endpoint receives one copy when it is due, and none before."""
        async with self.open_transport() as subject:
            await _declare(subject, *(Topology(endpoint=name, events=events) for name, events in _SUBSCRIBED.items()))
            assert await _send(subject, Send(message=message(), due=subject.now() + 2_000)) == (Answer.TAKEN,)
            await subject.pass_time(1_000)
            assert await self._take_none(subject)
            await subject.pass_time(1_000)
            for name, events in _SUBSCRIBED.items():
                expected = ["m1"] if EVENT in events else []
                got = await self._drained(await subject.transport(name), len(expected))
                assert ids_of(got + await self._take_all(subject, name, least=0)) == expected

    async def test_a_delayed_message_does_not_hold_up_others(self) -> None:
        """Messages that are due are delivered before a delayed message that was sent earlier."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message("late"), to=ENDPOINT, due=subject.now() + 5_000))
            await _put(subject, "m1")
            assert ids_of(await self._take_all(subject)) == ["m1"]

    async def test_a_message_due_in_the_past_is_delivered_at_once(self) -> None:
        """A message whose `due` is in the past is delivered without delay."""
        async with self._queue() as subject:
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() - 5_000))
            assert ids_of(await self._take_all(subject)) == ["m1"]

    # Queues

    async def test_declaring_again_is_harmless(self) -> None:
        """A repeated `declare` neither loses nor duplicates messages, and keeps the subscription."""
        topology = Topology(endpoint=ENDPOINT, events=(EVENT,))
        async with self.open_transport() as subject:
            await _declare(subject, topology)
            await _put(subject, "m1", declare=False)
            await _declare(subject, topology)
            await _send(subject, Send(message=message("m2")))
            assert sorted(ids_of(await self._take_all(subject, least=2))) == ["m1", "m2"]

    async def test_declaring_adds_subscriptions(self) -> None:
        """`declare` adds subscriptions to those of earlier calls. A new version of an endpoint may need more events."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT))
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            await _send(subject, Send(message=message()))
            assert ids_of(await self._take_all(subject)) == ["m1"]

    async def test_declaring_less_keeps_subscriptions(self) -> None:
        """`declare` keeps subscriptions that it does not name. Old and new versions of an endpoint may run at the same time."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            await _declare(subject, Topology(endpoint=ENDPOINT))
            await _send(subject, Send(message=message()))
            assert ids_of(await self._take_all(subject)) == ["m1"]

    async def test_what_an_endpoint_names_as_gone_is_unsubscribed(self) -> None:
        """`gone` ends the subscription to a type.

        Messages already in the queue stay, as do other subscriptions, also of other endpoints. Repetition is harmless.
        """
        other, third = "shop.other.v1", "shop.third.v1"
        gone = (Topology(endpoint=ENDPOINT, gone=(third, EVENT, "never subscribed")), Topology(endpoint=OTHER, gone=(third,)))
        async with self.open_transport() as subject:
            kept = Topology(endpoint=OTHER, events=(EVENT, third))
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT, other, third)), kept)
            await _send(subject, Send(message=message("m1")))
            for _ in range(2):
                await _declare(subject, *gone)
            late = subject.now() + 1_000
            await _send(
                subject,
                Send(message=message("m2")),
                Send(message=replace(message("m3"), type=other)),
                Send(message=message("m4"), due=late),
                Send(message=replace(message("m5"), type=other), due=late),
                Send(message=replace(message("m6"), type=third)),
            )
            await subject.pass_time(1_000)
            for name, expected in ((OTHER, ["m1", "m2", "m4"]), (ENDPOINT, ["m1", "m3", "m5"])):
                got = await self._drained(await subject.transport(name), len(expected))
                assert sorted(ids_of(got + await self._take_all(subject, name, least=0))) == expected

    async def test_depth_counts_what_waits_is_held_and_is_delayed(self) -> None:
        """`depth` does not count acked messages, nor those of other endpoints."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER))
            await _put(subject, "m1", "m2", "m3", "m4", "m5", "m6")
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + LONG_MS))
            await _send(
                subject, Send(message=message(), to=OTHER), Send(message=message(), to=OTHER, due=subject.now() + LONG_MS)
            )
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack(held[:1])
            assert await (await subject.transport()).depth(ENDPOINT) == Depth(waiting=3, held=2, delayed=1)

    async def test_depth_counts_delayed_events_of_the_endpoint_alone(self) -> None:
        """`depth` counts a delayed event for its subscribers, not for other endpoints."""
        kinds = EVENT, "shop.other.v1"
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=kinds), Topology(endpoint=OTHER, events=("other",)))
            await _send(subject, *(Send(message=replace(message(), type=kind), due=subject.now() + LONG_MS) for kind in kinds))
            transport = await subject.transport()
            assert await transport.depth(ENDPOINT, kinds) == Depth(waiting=0, held=0, delayed=2)
            assert await transport.depth(OTHER, ("other",)) == Depth(waiting=0, held=0, delayed=0)

    async def test_depth_counts_nothing_for_a_receiver_that_waits(self) -> None:
        """A receiver that waits for messages holds none."""
        async with self._queue() as subject:
            receiver = await subject.transport()
            assert await receiver.receive(MANY, self.quiet) == ()
            waiting = asyncio.create_task(receiver.receive(MANY, AGES_SECONDS))
            await steps(10)
            assert await (await subject.transport()).depth(ENDPOINT) == Depth(waiting=0, held=0, delayed=0)
            await _put(subject, "m1")
            async with asyncio.timeout(self.patience):
                assert ids_of(await waiting) == ["m1"]

    async def test_depth_counts_what_came_back_as_waiting(self) -> None:
        """Released deliveries, deliveries whose lease ended, and delayed messages that are due count as waiting."""
        async with self._queue("m1", "m2") as subject:
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 1))
            receiver = await subject.transport()
            held = await self._drained(receiver, 2)
            await receiver.release(held[:1])
            await subject.lapse()
            await subject.pass_time(1)
            assert await (await subject.transport()).depth(ENDPOINT) == Depth(waiting=3, held=0, delayed=0)

    async def test_receiving_from_an_unknown_queue_is_a_setup_error(self) -> None:
        """The first `receive` raises SetupError without the queue. Waiting would look like an idle endpoint."""
        async with self._queue() as subject, raises(SetupError), asyncio.timeout(self.patience):
            await (await subject.transport("nobody")).receive(1, 0)

    async def test_the_depth_of_an_unknown_queue_is_a_setup_error(self) -> None:
        """`depth` raises SetupError for an unknown queue. Zero would look like success."""
        async with self._queue() as subject, raises(SetupError):
            await (await subject.transport()).depth("nobody")

    async def _take(self, receiver: Transport, limit: int = MANY) -> tuple[Delivery, ...]:
        return await receiver.receive(limit, self.patience)

    async def _take_one(self, receiver: Transport, limit: int = MANY) -> Delivery:
        """Receive the one delivery that must be available."""
        got = await self._take(receiver, limit)
        assert len(got) == 1
        return got[0]

    async def _drained(self, receiver: Transport, count: int, limit: int = 0) -> tuple[Delivery, ...]:
        """Receive this many deliveries, in as many calls as necessary. One call takes no more than that, or than `limit`."""
        got: tuple[Delivery, ...] = ()
        while len(got) < count and (more := await self._take(receiver, limit or count - len(got))):
            got += more
        return got

    async def _take_all(self, subject: TransportSubject, endpoint: str = ENDPOINT, *, least: int = 1) -> tuple[Delivery, ...]:
        """Receive as a new process until the queue is empty. Wait for the first `least` deliveries: they must come."""
        receiver = await subject.transport(endpoint)
        got = await self._drained(receiver, least, limit=MANY)
        while more := await receiver.receive(MANY, self.quiet):
            got += more
        return got

    async def _take_none(self, subject: TransportSubject, endpoint: str = ENDPOINT) -> bool:
        return await self._take_all(subject, endpoint, least=0) == ()

    async def _handle_twice(self, transport: Transport, limit: int, released: set[str], left: set[str]) -> list[str]:
        """Receive until nothing is `left`. Release each message the first time, and ack it the second time."""
        got: list[str] = []
        async with asyncio.timeout(self.patience):
            while left:
                more = await transport.receive(limit, self.quiet)
                first = [each for each in more if ids_of([each])[0] not in released]
                again = [each for each in more if each not in first]
                released.update(ids_of(first))
                await asyncio.gather(transport.release(first), transport.ack(again))
                got += ids_of(more)
                left.difference_update(ids_of(again))
                await asyncio.sleep(0)  # adapters in memory never wait
        return got

    async def _compete(self, subject: TransportSubject, limit: int, got: list[str], count: int) -> None:
        """Receive and ack until all receivers together have `got` this many."""
        receiver = await subject.transport()
        async with asyncio.timeout(self.patience):
            while len(got) < count:
                more = await receiver.receive(limit, self.quiet)
                got += ids_of(more)
                await receiver.ack(more)
                await asyncio.sleep(0)  # adapters in memory never wait


def _impossible(traits: Traits) -> list[str]:
    """Name the traits whose values cannot be true."""
    limits = {
        "lease": traits.lease,
        "max_body": traits.max_body,
        "most_received": traits.most_received,
        "most_sent": traits.most_sent,
    }
    wrong = [name for name, value in limits.items() if value is not None and not value > 0]
    if traits.longest_delay is not None and traits.longest_delay < 0:
        wrong.append("longest_delay")
    if traits.fan_out is not None and traits.fan_out not in FanOut:
        wrong.append("fan_out")
    return wrong


_SUBSCRIBED = {ENDPOINT: (EVENT,), OTHER: ("shop.other.v1", EVENT), "audit": ("shop.other.v1",), "idle": ()}


async def _declare(subject: TransportSubject, *topologies: Topology) -> None:
    await (await subject.transport()).declare(topologies or [Topology(endpoint=ENDPOINT)])


async def _send(subject: TransportSubject, *sends: Send) -> tuple[Answer, ...]:
    return await (await subject.transport()).send(sends)


async def _put(subject: TransportSubject, *ids: str, declare: bool = True) -> None:
    if declare:
        await _declare(subject)
    answers = await _send(subject, *(replace(_COMMAND, message=message(name)) for name in ids))
    assert answers == (Answer.TAKEN,) * len(ids)


_COMMAND = Send(message=message(), to=ENDPOINT)


def _message(delivery: Delivery) -> Message:
    """Read a delivery as an endpoint does."""
    event = take_apart(delivery.headers, delivery.body)
    return _sorted(message_of(event, source=event.attributes["source"], id=event.attributes["id"]))


def _written(traits: Traits) -> Message:
    """Return a message that another format than CloudEvents has written, for other programs on this transport."""
    headers = (("message-id", "m-1"), ("x-type", "order"), ("x-tenant", "köln")) if traits.carries_headers else ()
    return Message(id="m-1", source=ENDPOINT, type=EVENT, body=b'{"total":1}', headers=headers)


def _changed(written: Message, delivery: Delivery) -> str:
    """Return what is not as it was written, or an empty text. A broker may add headers of its own."""
    added = [name for name, _ in delivery.headers if attribute_of(name) not in (None, PARTITION_KEY)]
    lost = set(written.headers) - set(delivery.headers)
    if delivery.body != written.body:
        return f"the body is {delivery.body!r}"
    return f"attributes {added}, lost headers {lost}" if added or lost else ""


def _sorted(message: Message) -> Message:
    """Sort the headers. Their order has no meaning, and RabbitMQ sorts those of a delayed message."""
    return replace(message, headers=tuple(sorted(message.headers)))


def ids_of(deliveries: Iterable[Delivery]) -> list[str]:
    """Return the ids of the messages that were delivered."""
    return [_message(delivery).id for delivery in deliveries]
