"""What becomes of messages that a store bars: dead letters with the reason, or a copy that waits and is not counted."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.settlement import BatchReport
from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.errors import HandlerFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Answer, Decision, Record
from onceonly.model.remote import RemoteRequest, Response, Verb
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.model.ring import Undecidable, bucketing_for
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.ring import Rotation
from onceonly.ports.store import Resources
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.logs import Logs
from onceonly.runtime.observe.observed_ports import observed
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.ring_subject import RETENTION_MS, WIDTH_MS, at, name_of
from onceonly_verify.memory_ports.ring import MemoryRing, MemoryRingStore
from tests.log_events import event_in
from tests.one_by_one import OneByOne


class Counting(OneByOne):
    """Handlers that note whom they handled, and fail for those who are to."""

    def __init__(self, clock: ManualClock) -> None:
        self.handled: list[str] = []
        self.clock = clock

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read CloudEvents headers."""
        event = take_apart(delivery.headers, delivery.body)
        return message_of(event, source=event.attributes["source"], id=event.attributes["id"])

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Note it."""
        self.handled.append(name_of(message.identity))
        if message.body == b"fail":
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="boom"))
        if message.body == b"later":
            raise HandlerFailed(Failure(kind=FailureKind.LATER, reason="later", delay=1))
        return Decision()

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge by the clock."""
        return decide_retry(Retry(), failure, attempts=attempts, history=history, now=self.clock.now(), fraction=0.0)


class Answering(NoArtifacts):
    """Other services that take every call; notes for whom."""

    def __init__(self) -> None:
        self.called: list[str] = []

    async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
        """Take them."""
        calling = [record.identity for record in records if record.requests]
        self.called += [name_of(identity) for identity in calling]
        return dict.fromkeys(calling, Answer.TAKEN)


class Place:
    """One endpoint whose store forgets."""

    def __init__(self) -> None:
        self.clock, self.driver = ManualClock(), Live()
        self.store = MemoryRingStore(self.driver, "shop", bucketing=bucketing_for(RETENTION_MS), clock=self.clock)
        self.ring = MemoryRing(self.driver, self.store)
        self.letters = MemoryDeadLetters(self.driver, clock=self.clock)
        self.transport = MemoryTransport(self.driver, "shop", clock=self.clock)
        self.handlers = Counting(self.clock)
        self.effects = Answering()
        store, handlers = self.store, self.handlers
        self.ports = Ports("shop", store, store, store, handlers, StoreAdmission(), self.effects, self.transport, self.letters)

    async def deliver(self, *messages: Message) -> BatchReport:
        """Send these, and take through whatever waits."""
        await self.transport.declare([Topology(endpoint="shop")])
        await self.transport.send([Send(message=message, to="shop") for message in messages])
        return await deliver(await self.transport.receive(10, 0), self.ports)

    async def reasons(self) -> list[str]:
        """Return the reasons of all dead letters."""
        return [letter.reason for letter in await self.letters.page(Filter())]


@pytest.mark.parametrize(("instant", "bar"), [(1, Undecidable.TOO_OLD), (10**14, Undecidable.TOO_NEW)])
async def test_what_nobody_can_judge_is_a_dead_letter_with_that_reason(instant: int, bar: Undecidable) -> None:
    """Refused, not repeated; the rest of its batch is handled."""
    place = Place()
    report = await place.deliver(at(instant, "odd"), at(place.clock.now(), "fine"))
    assert (report.dead, report.handled, place.handlers.handled) == (1, 1, ["fine"])
    assert await place.reasons() == [bar.value]
    assert (await place.transport.depth("shop")).waiting == 0


async def test_a_message_whose_bucket_is_not_rotated_comes_again_later_uncounted() -> None:
    """However often; the report asks for the rotation. Then it is handled."""
    place = Place()
    await place.ring.buckets()
    place.clock.advance(20 * WIDTH_MS)
    late = at(place.clock.now(), "late")
    report = await place.deliver(late)
    for _ in range(30):
        assert (report.slot_not_ready, report.retried, place.handlers.handled) == (1, 1, [])
        assert (await place.transport.depth("shop")).delayed == 1
        place.clock.advance(10)
        assert (await place.deliver()).slot_not_ready == 0  # it waits
        place.clock.advance(6000)
        report = await place.deliver()
    bucketing = await place.ring.bucketing()
    outcome = await place.ring.rotate(bucketing.bucket(late.instant))
    assert outcome in (Rotation.ROTATED, Rotation.CURRENT)
    assert await place.reasons() == []


async def test_a_message_that_waited_is_handled_once_its_bucket_is_rotated() -> None:
    """With the instant that it had."""
    place = Place()
    await place.ring.buckets()
    place.clock.advance(20 * WIDTH_MS)
    late = at(place.clock.now(), "late")
    assert (await place.deliver(late)).slot_not_ready == 1
    assert await place.ring.rotate((await place.ring.bucketing()).bucket(late.instant)) is Rotation.ROTATED
    place.clock.advance(5000)
    assert (await place.deliver()).handled == 1
    assert (await place.deliver(late)).known == 1
    assert place.handlers.handled == ["late"]


async def test_the_log_says_who_waits_for_a_bucket_and_whom_a_handler_puts_off(caplog: pytest.LogCaptureFixture) -> None:
    """The same message may be both, one after the other; of many there is one line."""
    caplog.set_level("INFO", "onceonly")
    place = Place()
    place.ports = observed(place.ports, Logs())
    await place.ring.buckets()
    place.clock.advance(20 * WIDTH_MS)
    late = [replace(at(place.clock.now(), f"m{number}"), body=b"later") for number in range(5)]
    await place.deliver(late[0])
    assert [vars(record)["reason"] for record in caplog.records] == ["time bucket not rotated"]
    assert told(caplog) == [("message delayed", late[0].id)]
    await place.deliver(*late)
    assert told(caplog) == [("messages delayed", None)]
    assert await place.ring.rotate((await place.ring.bucketing()).bucket(late[0].instant)) is Rotation.ROTATED
    await place.deliver(late[0])
    assert told(caplog) == [("message postponed, not counted as a failure", late[0].id)]


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str | None]]:
    """Return what was logged since the last time, and about which message."""
    found = [(event_in(record), vars(record).get("message_id")) for record in caplog.records]
    caplog.clear()
    return found


async def test_a_retry_copy_keeps_the_instant_of_its_message() -> None:
    """It is claimed where the first delivery was, and two copies of it are one message."""
    place = Place()
    failing = replace(at(place.clock.now(), "m1"), body=b"fail")
    await place.deliver(failing)
    (copy,) = await place.transport.receive(10, 0)
    found = place.handlers.read(copy)
    assert isinstance(found, Message)
    assert (found.identity, found.instant, copy.attempts) == (failing.identity, failing.instant, 1)


async def test_a_call_that_is_pending_keeps_its_bucket_and_is_made_when_its_message_comes_again() -> None:
    """A record may have calls alone, such as one that ends a request; whoever makes them is no copy of what is done."""
    place = Place()
    await place.ring.buckets()
    message = at(place.clock.now(), "follow-up")
    unit = await place.store.begin([message])
    await unit.commit([Record(message.identity, requests=(RemoteRequest(Verb.DELETE, "http://till/r"),))])
    place.clock.advance(20 * WIDTH_MS)
    bucket = (await place.ring.bucketing()).bucket(message.instant)
    assert await place.ring.rotate(bucket) is Rotation.PENDING
    report = await place.deliver(message)
    assert (report.known, report.idle, place.effects.called, place.handlers.handled) == (1, 0, ["follow-up"], [])
    assert await place.ring.rotate(bucket) is Rotation.ROTATED
