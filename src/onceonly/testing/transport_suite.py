"""The contract of the Transport port, rule by rule. Whoever sends, receives or looks does so from a process of its own."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol

from msgspec.structs import replace

from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.errors import SetupError
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.testing.samples import failures, message, rich_message
from onceonly.testing.suite import ENDPOINT, OTHER, Suite, raises

__all__ = ["TransportSubject", "TransportSuite"]

EVENT = message().type
AGES_SECONDS = 3600.0
DAY_MS = 24 * 3600 * 1000
MANY = 100


class TransportSubject(Protocol):
    """A transport under test."""

    async def transport(self, endpoint: str = ENDPOINT) -> Transport:
        """Open an endpoint's transport, each time as a process of its own would."""

    async def ahead(self, endpoint: str, milliseconds: int) -> Transport:
        """Open it as a process would whose own clock is ahead by that much, on a transport that does not share its mistake."""

    def now(self) -> int:
        """Give the transport's time, milliseconds since 1970."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the transport's time pass, so that delays fall due and leases that last less long end."""

    async def lapse(self) -> None:
        """End every lease there is, as if each receiver had lost its connection or been silent for too long."""


class TransportSuite(Suite):
    """Every promise of a transport. Override `open_transport`. `quiet` is how many seconds prove that nothing comes."""

    quiet: ClassVar[float] = 0.0

    def open_transport(self) -> AbstractAsyncContextManager[TransportSubject]:
        """Give a transport without queues, and clean up afterwards."""
        raise NotImplementedError

    # What arrives

    async def test_a_message_arrives_once_when_it_is_acked(self) -> None:
        """After the ack it never comes again, not even when leases end."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            receiver = await subject.transport()
            delivery = await self._take_one(receiver)
            await receiver.ack([delivery])
            await subject.lapse()
            assert _ids([delivery]) == ["m1"]
            assert await self._take_none(subject)

    async def test_the_same_id_sent_twice_arrives_twice(self) -> None:
        """A transport does not deduplicate."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m1")
            await _put(subject, "m1")
            assert _ids(await self._take_all(subject)) == ["m1", "m1", "m1"]

    async def test_a_message_arrives_as_it_was_sent(self) -> None:
        """Every attribute, extension and header, in any script, and every byte of the body."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=rich_message(), to=ENDPOINT))
            delivery = await self._take_one(await subject.transport())
            assert _message(delivery) == rich_message()

    async def test_an_empty_body_arrives_empty(self) -> None:
        """Nothing is not null."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message(body=b""), to=ENDPOINT))
            delivery = await self._take_one(await subject.transport())
            assert _message(delivery) == message(body=b"")

    async def test_a_retry_copy_keeps_what_it_remembers(self) -> None:
        """Attempts, history, that it must run alone, and how many processes died that held it."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message(), to=ENDPOINT, attempts=7, history=failures(), alone=True, held=3))
            delivery = await self._take_one(await subject.transport())
            assert (delivery.attempts, delivery.history, delivery.alone, delivery.held) == (7, failures(), True, 3)

    async def test_a_first_copy_remembers_nothing(self) -> None:
        """No attempts, no history, not alone, and not held before."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            delivery = await self._take_one(await subject.transport())
            assert (delivery.attempts, delivery.history, delivery.alone, delivery.held) == (0, (), False, 0)

    async def test_a_delivery_names_its_queue(self) -> None:
        """It is the endpoint's: foreign messages take their source from it."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            assert [delivery.queue for delivery in await self._take_all(subject)] == [ENDPOINT]

    # Receiving

    async def test_receive_takes_at_most_the_limit(self) -> None:
        """What is left comes next."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2", "m3")
            receiver = await subject.transport()
            first = await self._take(receiver, limit=2)
            assert 1 <= len(first) <= 2
            await receiver.ack(first)
            assert sorted(_ids(first) + _ids(await self._take_all(subject))) == ["m1", "m2", "m3"]

    async def test_receive_does_not_wait_to_fill(self) -> None:
        """One message is handed out at once, however many were asked for and however long it may wait."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            async with asyncio.timeout(self.patience):
                assert _ids(await (await subject.transport()).receive(MANY, AGES_SECONDS)) == ["m1"]

    async def test_receive_is_empty_when_nothing_comes(self) -> None:
        """It ends after its wait."""
        async with self.open_transport() as subject:
            await _declare(subject)
            async with asyncio.timeout(self.patience):
                assert await (await subject.transport()).receive(MANY, self.quiet) == ()

    async def test_a_waiting_receive_wakes_when_a_message_comes(self) -> None:
        """Long before its wait is over."""
        async with self.open_transport() as subject:
            await _declare(subject)
            receiver = await subject.transport()
            waiting = asyncio.create_task(receiver.receive(MANY, AGES_SECONDS))
            await _steps(10)
            await _put(subject, "m1")
            async with asyncio.timeout(self.patience):
                assert _ids(await waiting) == ["m1"]

    async def test_a_cancelled_receive_loses_nothing(self) -> None:
        """What it was about to take is taken by another, unmarked, without waiting for a lease to end."""
        async with self.open_transport() as subject:
            await _declare(subject)
            for steps in range(12):
                waiting = asyncio.create_task((await subject.transport()).receive(MANY, AGES_SECONDS))
                await _steps(5)
                putting = asyncio.create_task(_put(subject, f"m{steps}"))
                await _steps(steps)
                waiting.cancel()
                await asyncio.wait([waiting, putting])
                got = waiting.result() if not waiting.cancelled() else await self._take(await subject.transport())
                assert (_ids(got), [each.suspect for each in got]) == ([f"m{steps}"], [False])
                await (await subject.transport()).ack(got)

    async def test_receivers_never_share_a_delivery(self) -> None:
        """However many compete at once, each message goes to one of them."""
        sent = [f"m{number}" for number in range(40)]
        async with self.open_transport() as subject:
            await _put(subject, *sent)
            got = await asyncio.gather(*(self._drain(subject, limit) for limit in (1, 3, 5, 7)))
            assert sorted(name for names in got for name in names) == sorted(sent)

    async def test_a_held_delivery_is_not_given_to_another(self) -> None:
        """As long as its lease lasts."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            await self._take(await subject.transport())
            assert await self._take_none(subject)

    async def test_a_message_for_one_endpoint_is_not_given_to_another(self) -> None:
        """Each endpoint has its own queue."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER))
            await _put(subject, "m1")
            assert await self._take_none(subject, OTHER)
            assert _ids(await self._take_all(subject)) == ["m1"]

    # Leases

    async def test_a_first_delivery_is_no_suspect(self) -> None:
        """Nobody held it before."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            assert [delivery.suspect for delivery in await self._take_all(subject)] == [False]

    async def test_a_delivery_whose_lease_ended_comes_again_as_a_suspect(self) -> None:
        """Whoever held it may have been killed by it."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            await self._take(await subject.transport())
            await subject.lapse()
            again = await self._take_one(await subject.transport())
            assert (_ids([again]), again.suspect) == (["m1"], True)

    async def test_a_receiver_whose_clock_is_ahead_hides_nothing(self) -> None:
        """What it receives comes again when its lease has ended. What it releases or sends comes at once."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2")
            ahead = await subject.ahead(ENDPOINT, DAY_MS)
            taken = await self._drained(ahead, 2)
            kept = [each for each in taken if _ids([each]) == ["m2"]]
            await ahead.release([each for each in taken if each not in kept])
            await ahead.send([Send(message=message("m3"), to=ENDPOINT)])
            receiver = await subject.transport()
            here = await self._drained(receiver, 2)
            assert sorted(_ids(here)) == ["m1", "m3"]
            await ahead.extend(kept)
            await receiver.ack(here)
            await subject.lapse()
            assert _ids(await self._drained(await subject.transport(), 1)) == ["m2"]

    async def test_a_released_delivery_comes_again_at_once_and_is_no_suspect(self) -> None:
        """To anyone, without waiting for its lease to end."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2")
            receiver = await subject.transport()
            await receiver.release(await self._drained(receiver, 2))
            again = await self._drained(await subject.transport(), 2)
            assert sorted((*_ids(again), *(str(each.suspect) for each in again))) == ["False", "False", "m1", "m2"]

    async def test_a_release_gives_back_only_what_it_names(self) -> None:
        """The others of a batch stay with their holder."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2", "m3")
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.release([each for each in held if _ids([each]) == ["m2"]])
            assert _ids(await self._take_all(subject)) == ["m2"]

    async def test_releasing_a_suspect_clears_it(self) -> None:
        """It was given back by someone who lived."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            await self._take(await subject.transport())
            await subject.lapse()
            receiver = await subject.transport()
            await receiver.release(await self._take(receiver))
            again = await self._take_one(await subject.transport())
            assert again.suspect is False

    async def test_extending_keeps_a_delivery(self) -> None:
        """Its lease begins anew."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            receiver = await subject.transport()
            held = await self._take(receiver)
            assert receiver.traits.lease is not None
            most_of_it = int(receiver.traits.lease * 750)
            await subject.pass_time(most_of_it)
            await receiver.extend(held)
            await subject.pass_time(most_of_it)
            assert await self._take_none(subject)
            await receiver.ack(held)
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_extending_too_late_does_nothing(self) -> None:
        """A lease that ended is not revived: another may have it."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            receiver = await subject.transport()
            held = await self._take(receiver)
            await subject.lapse()
            await receiver.extend(held)
            again = await self._take_one(await subject.transport())
            await receiver.extend(held)
            await subject.lapse()
            assert again.suspect
            assert _ids(await self._take(await subject.transport())) == ["m1"]

    async def test_a_late_ack_does_not_take_the_delivery_of_another(self) -> None:
        """Only the present holder settles it."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            receiver = await subject.transport()
            again = await self._take(receiver)
            await slow.ack(held)
            await receiver.release(again)
            assert _ids(await self._take_all(subject)) == ["m1"]

    async def test_a_late_release_does_not_take_the_delivery_of_another(self) -> None:
        """It stays with its present holder."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            await self._take(await subject.transport())
            await slow.release(held)
            assert await self._take_none(subject)

    async def test_a_late_ack_is_harmless(self) -> None:
        """Nobody took it since: it is settled or comes again, and nothing else suffers."""
        async with self.open_transport() as subject:
            await _put(subject, "m1")
            slow = await subject.transport()
            held = await self._take(slow)
            await subject.lapse()
            await slow.ack(held)
            await _put(subject, "m2")
            assert "m2" in _ids(await self._take_all(subject))

    async def test_acking_twice_is_harmless(self) -> None:
        """Also several at once."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2", "m3")
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack(held[:2])
            await receiver.ack(held[:2])
            await receiver.ack(held)
            await subject.lapse()
            assert await self._take_none(subject)

    async def test_an_ack_settles_only_what_it_names(self) -> None:
        """The others of a batch come again."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2", "m3")
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack([each for each in held if _ids([each]) != ["m2"]])
            await subject.lapse()
            assert _ids(await self._take_all(subject)) == ["m2"]

    # Sending

    async def test_a_command_goes_to_its_endpoint_only(self) -> None:
        """Even when another one subscribed to that type."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER, events=(EVENT,)))
            assert await _send(subject, Send(message=message(), to=ENDPOINT)) == (Answer.TAKEN,)
            assert await self._take_none(subject, OTHER)
            assert _ids(await self._take_all(subject)) == ["m1"]

    async def test_a_command_that_cannot_be_routed_is_refused(self) -> None:
        """Nobody declared that endpoint."""
        async with self.open_transport() as subject:
            await _declare(subject)
            assert await _send(subject, Send(message=message(), to="nobody")) == (Answer.REFUSED,)

    async def test_answers_are_in_the_order_of_the_sends(self) -> None:
        """A refused one does not hold up the others."""
        sends = [Send(message=message(f"m{n}"), to="nobody" if n in (0, 3) else ENDPOINT) for n in range(5)]
        async with self.open_transport() as subject:
            await _declare(subject)
            answers = await _send(subject, *sends)
            assert [answer is Answer.REFUSED for answer in answers] == [True, False, False, True, False]
            assert sorted(_ids(await self._take_all(subject))) == ["m1", "m2", "m4"]

    async def test_sending_nothing_answers_nothing(self) -> None:
        """An empty list is fine everywhere."""
        async with self.open_transport() as subject:
            await _declare(subject)
            transport = await subject.transport()
            await transport.ack([])
            await transport.release([])
            await transport.extend([])
            assert await transport.send([]) == ()

    async def test_an_event_goes_to_every_endpoint_that_subscribed(self) -> None:
        """One copy each, and none to the others."""
        async with self.open_transport() as subject:
            topologies = [Topology(endpoint=name, events=events) for name, events in _SUBSCRIBED.items()]
            await _declare(subject, *topologies)
            assert await _send(subject, Send(message=message())) == (Answer.TAKEN,)
            got = {name: _ids(await self._take_all(subject, name)) for name in _SUBSCRIBED}
            assert got == {name: ["m1"] if EVENT in events else [] for name, events in _SUBSCRIBED.items()}

    async def test_an_event_is_matched_by_its_exact_type(self) -> None:
        """Neither case nor a common beginning is enough."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT.upper(), EVENT[:-1], EVENT + "0", "%", "*", "#")))
            await _send(subject, Send(message=message()))
            assert await self._take_none(subject)

    async def test_an_event_nobody_subscribed_to_is_taken(self) -> None:
        """That is normal."""
        async with self.open_transport() as subject:
            await _declare(subject)
            assert await _send(subject, Send(message=message())) == (Answer.TAKEN,)
            assert await self._take_none(subject)

    async def test_a_body_of_the_greatest_size_arrives(self) -> None:
        """The trait is no guess."""
        async with self.open_transport() as subject:
            await _declare(subject)
            body = bytes((await subject.transport()).traits.max_body)
            assert await _send(subject, Send(message=message(body=body), to=ENDPOINT)) == (Answer.TAKEN,)
            assert [each.body for each in await self._take_all(subject)] == [body]

    async def test_a_body_over_the_greatest_size_is_refused(self) -> None:
        """Whoever it is for, and what is sent along with it is not."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            large = message("large", body=bytes((await subject.transport()).traits.max_body + 1))
            sends = (Send(message=large, to=ENDPOINT), Send(message=large), Send(message=message(), to=ENDPOINT))
            assert await _send(subject, *sends) == (Answer.REFUSED, Answer.REFUSED, Answer.TAKEN)
            assert _ids(await self._take_all(subject)) == ["m1"]

    # Delays

    async def test_a_delayed_message_is_not_delivered_before_it_is_due(self) -> None:
        """Not even a little."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(4_999)
            assert await self._take_none(subject)

    async def test_a_delayed_message_is_delivered_when_it_is_due(self) -> None:
        """At that instant, and it is no suspect: nobody held it."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 5_000))
            await subject.pass_time(5_000)
            assert [each.suspect for each in await self._take_all(subject)] == [False]

    async def test_a_delayed_message_does_not_hold_up_others(self) -> None:
        """Those behind it that are due come first."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message("late"), to=ENDPOINT, due=subject.now() + 5_000))
            await _put(subject, "m1")
            assert _ids(await self._take_all(subject)) == ["m1"]

    async def test_a_message_due_in_the_past_is_delivered_at_once(self) -> None:
        """It is as good as undelayed."""
        async with self.open_transport() as subject:
            await _declare(subject)
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() - 5_000))
            assert _ids(await self._take_all(subject)) == ["m1"]

    # Queues

    async def test_declaring_again_is_harmless(self) -> None:
        """What waits stays, once."""
        topology = Topology(endpoint=ENDPOINT, events=(EVENT,))
        async with self.open_transport() as subject:
            await _declare(subject, topology)
            await _put(subject, "m1", declare=False)
            await _declare(subject, topology)
            await _send(subject, Send(message=message("m2")))
            assert sorted(_ids(await self._take_all(subject))) == ["m1", "m2"]

    async def test_declaring_adds_subscriptions(self) -> None:
        """A new version of an endpoint may want more events."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT))
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            await _send(subject, Send(message=message()))
            assert _ids(await self._take_all(subject)) == ["m1"]

    async def test_declaring_less_keeps_subscriptions(self) -> None:
        """While old and new versions of an endpoint run side by side, the old one still wants its events."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)))
            await _declare(subject, Topology(endpoint=ENDPOINT))
            await _send(subject, Send(message=message()))
            assert _ids(await self._take_all(subject)) == ["m1"]

    async def test_what_an_endpoint_names_as_gone_is_unsubscribed(self) -> None:
        """What came before stays, nobody else loses anything, and saying it again is harmless."""
        gone = Topology(endpoint=ENDPOINT, gone=(EVENT, "never subscribed"))
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT, events=(EVENT,)), Topology(endpoint=OTHER, events=(EVENT,)))
            await _send(subject, Send(message=message("m1")))
            for _ in range(2):
                await _declare(subject, gone)
            await _send(subject, Send(message=message("m2")))
            assert _ids(await self._take_all(subject)) == ["m1"]
            assert sorted(_ids(await self._take_all(subject, OTHER))) == ["m1", "m2"]

    async def test_depth_counts_what_waits_is_held_and_is_delayed(self) -> None:
        """And not what was acked, or is another's."""
        async with self.open_transport() as subject:
            await _declare(subject, Topology(endpoint=ENDPOINT), Topology(endpoint=OTHER))
            await _put(subject, "m1", "m2", "m3", "m4", "m5", "m6")
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 5_000))
            await _send(subject, Send(message=message(), to=OTHER))
            receiver = await subject.transport()
            held = await self._drained(receiver, 3)
            await receiver.ack(held[:1])
            assert await (await subject.transport()).depth(ENDPOINT) == Depth(waiting=3, held=2, delayed=1)

    async def test_depth_counts_what_came_back_as_waiting(self) -> None:
        """Released, or its lease ended, or due by now."""
        async with self.open_transport() as subject:
            await _put(subject, "m1", "m2")
            await _send(subject, Send(message=message(), to=ENDPOINT, due=subject.now() + 1))
            receiver = await subject.transport()
            held = await self._drained(receiver, 2)
            await receiver.release(held[:1])
            await subject.lapse()
            await subject.pass_time(1)
            assert await (await subject.transport()).depth(ENDPOINT) == Depth(waiting=3, held=0, delayed=0)

    async def test_the_depth_of_an_unknown_queue_is_a_setup_error(self) -> None:
        """Zero would look like success."""
        async with self.open_transport() as subject:
            await _declare(subject)
            async with raises(SetupError):
                await (await subject.transport()).depth("nobody")

    async def _take(self, receiver: Transport, limit: int = MANY) -> tuple[Delivery, ...]:
        """Receive what is expected to be there."""
        return await receiver.receive(limit, self.patience)

    async def _take_one(self, receiver: Transport) -> Delivery:
        """Receive the one delivery that is expected to be there."""
        got = await self._take(receiver)
        assert len(got) == 1
        return got[0]

    async def _drained(self, receiver: Transport, count: int) -> tuple[Delivery, ...]:
        """Receive this many, in as many calls as it takes."""
        got: tuple[Delivery, ...] = ()
        while len(got) < count and (more := await self._take(receiver, count - len(got))):
            got += more
        return got

    async def _take_all(self, subject: TransportSubject, endpoint: str = ENDPOINT) -> tuple[Delivery, ...]:
        """Receive, as a new process, until nothing more comes."""
        receiver = await subject.transport(endpoint)
        got: tuple[Delivery, ...] = ()
        while more := await receiver.receive(MANY, self.quiet):
            got += more
        return got

    async def _take_none(self, subject: TransportSubject, endpoint: str = ENDPOINT) -> bool:
        return await self._take_all(subject, endpoint) == ()

    async def _drain(self, subject: TransportSubject, limit: int) -> list[str]:
        """Receive and ack until nothing more comes."""
        receiver = await subject.transport()
        got: list[str] = []
        while more := await receiver.receive(limit, self.quiet):
            got += _ids(more)
            await receiver.ack(more)
        return got


_SUBSCRIBED = {ENDPOINT: (EVENT,), OTHER: ("shop.other.v1", EVENT), "audit": ("shop.other.v1",), "idle": ()}


async def _declare(subject: TransportSubject, *topologies: Topology) -> None:
    await (await subject.transport()).declare(topologies or [Topology(endpoint=ENDPOINT)])


async def _send(subject: TransportSubject, *sends: Send) -> tuple[Answer, ...]:
    return await (await subject.transport()).send(sends)


async def _put(subject: TransportSubject, *ids: str, declare: bool = True) -> None:
    """Put messages into the queue of the endpoint."""
    if declare:
        await _declare(subject)
    answers = await _send(subject, *(replace(_COMMAND, message=message(name)) for name in ids))
    assert answers == (Answer.TAKEN,) * len(ids)


_COMMAND = Send(message=message(), to=ENDPOINT)


def _message(delivery: Delivery) -> Message:
    """Read a delivery as an endpoint does."""
    event = take_apart(delivery.headers, delivery.body)
    return message_of(event, source=event.attributes["source"], id=event.attributes["id"])


def _ids(deliveries: Iterable[Delivery]) -> list[str]:
    return [_message(delivery).id for delivery in deliveries]


async def _steps(count: int) -> None:
    """Let the other tasks go on for some turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)
