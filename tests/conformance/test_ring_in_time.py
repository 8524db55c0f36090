"""Time moves: whatever comes twice or late, and whenever buckets are rotated, nothing is handled twice and nothing is lost."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import Phase, example, find, given, settings
from hypothesis import strategies as st

from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.errors import ConflictError, RetryableError
from onceonly.model.message import Delivery, Failure, Message, Send, Unreadable
from onceonly.model.record import Decision, Record
from onceonly.model.remote import Response
from onceonly.model.retry import Retry, RetryDecision, decide_retry
from onceonly.model.ring import Undecidable
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.store import Resources
from onceonly.ports.transport import Topology
from onceonly_conformance.ring_subject import WIDTH_MS, RingSubject, at, begun, rotate_all, rotated
from onceonly_conformance.suite import ENDPOINT
from tests.broken_adapters import rings
from tests.broken_adapters.wrapped_rings import WrappedRings
from tests.conformance.memory_subjects import MemoryRings
from tests.conformance.sql_subjects import SqlRings, make_tables
from tests.one_by_one import OneByOne

OUT = "out"
SOME = settings(derandomize=True, database=None, deadline=None, max_examples=200)
FEW = settings(SOME, max_examples=15, phases=[Phase.explicit, Phase.generate])
"""In a database each history takes a while; the histories are those that memory begins with as well."""
LOOKS = 2
"""So often all is worked through in the end, each time with all buckets rotated before: what waits needs it once more."""


class Sent(NamedTuple):
    """A new message, by a sender whose clock differs by so many milliseconds from the store's."""

    skew: int


class Copied(NamedTuple):
    """One more copy of a message that was sent."""

    which: int


class Passed(NamedTuple):
    """Time passes, in milliseconds."""

    time: int


class Rotated(NamedTuple):
    """Somebody rotates the bucket of a message, if it can be."""

    which: int


class Worked(NamedTuple):
    """A worker takes so many deliveries through."""

    limit: int


class Stalled(NamedTuple):
    """A process begins with a message; time passes and its bucket is rotated if it can be; it commits, and dies."""

    which: int
    time: int


Event = Sent | Copied | Passed | Rotated | Worked | Stalled
TIMES = st.sampled_from([WIDTH_MS // 2, WIDTH_MS, 6 * WIDTH_MS, 12 * WIDTH_MS, 14 * WIDTH_MS, 16 * WIDTH_MS])
WHICH = st.integers(0, 3)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Sent, st.sampled_from([-WIDTH_MS, -1, 0, 1, WIDTH_MS])),
    st.builds(Copied, WHICH),
    st.builds(Passed, TIMES),
    st.builds(Rotated, WHICH),
    st.builds(Worked, st.integers(1, 4)),
    st.builds(Stalled, WHICH, TIMES),
)
HISTORIES = st.lists(EVENTS, max_size=16)
PENDING: list[Event] = [Sent(0), Stalled(0, 16 * WIDTH_MS), Rotated(0)]
EARLY: list[Event] = [Sent(0), Passed(12 * WIDTH_MS), Passed(WIDTH_MS // 4), Rotated(0)]


class SubjectClock:
    """The subject's time as a clock."""

    def __init__(self, subject: RingSubject) -> None:
        self.now = subject.now


class SimulatedEndpoint(OneByOne):
    """One endpoint on a store under test: each message writes one row and sends one message."""

    def __init__(self, subject: RingSubject) -> None:
        self.subject = subject
        self.sent: list[Message] = []
        self._runs = 0
        driver, clock = Live(), SubjectClock(subject)
        self.transport = MemoryTransport(driver, ENDPOINT, clock=clock)
        self.out = MemoryTransport(driver, OUT, clock=clock)
        self.letters = MemoryDeadLetters(driver, clock=clock)

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read CloudEvents headers."""
        event = take_apart(delivery.headers, delivery.body)
        return message_of(event, source=event.attributes["source"], id=event.attributes["id"])

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Write a row that says which run it is."""
        self._runs += 1
        await self.subject.write(resources, f"{message.id}/{self._runs}", "")
        return Decision((Send(message=Message(id=message.id, source=ENDPOINT, type="done", body=b"{}"), to=OUT),))

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge by the subject's time."""
        return decide_retry(Retry(), failure, attempts=attempts, history=history, now=self.subject.now(), fraction=0.0)

    async def play(self, events: Sequence[Event]) -> None:
        """Let these happen, and bring everything to rest; last come two very late copies of each message."""
        await begun(self.subject)
        await self.transport.declare([Topology(endpoint=ENDPOINT), Topology(endpoint=OUT)])
        for event in events:
            await self._happen(event)
        await self._rest()
        for message in self.sent * 2:
            await self._send(message)
            await self.work(1)
        await self._rest()

    async def _rest(self) -> None:
        for _ in range(LOOKS):
            await self.work(100)
            await self.subject.pass_time(10_000)
            await rotate_all(self.subject)

    async def _happen(self, event: Event) -> None:
        match event:
            case Sent(skew):
                self.sent.append(at(self.subject.now() + skew, f"m{len(self.sent)}"))
                await self._send(self.sent[-1])
            case Copied(which) if which < len(self.sent):
                await self._send(self.sent[which])
            case Passed(time):
                await self.subject.pass_time(time)
            case Rotated(which) if which < len(self.sent):
                await rotated(self.subject, self.sent[which].instant)
            case Worked(limit):
                await self.work(limit)
            case Stalled(which, time) if which < len(self.sent):
                await self._stall(self.sent[which], time)
            case _:
                pass

    async def _send(self, message: Message) -> None:
        await self.transport.send([Send(message=message, to=ENDPOINT)])

    async def work(self, limit: int) -> None:
        """Be a worker for one batch."""
        store = await self.subject.store()
        ports = Ports(ENDPOINT, store, store, None, self, StoreAdmission(), NoArtifacts(), self.transport, self.letters)
        await deliver(await self.transport.receive(limit, 0), ports)

    async def _stall(self, message: Message, time: int) -> None:
        """Commit late, and die; the delivery comes again."""
        unit = await (await self.subject.store()).begin([message])
        await self.subject.pass_time(time)
        await rotated(self.subject, message.instant)
        if unit.found.new:
            decision = await self.handle(message, unit.resources)
            try:
                await unit.commit([Record(message.identity, decision.effects)])
            except (ConflictError, RetryableError):
                unit.abandon()
        else:
            unit.abandon()
        await self._send(message)

    async def wrong(self) -> str:
        """Say which promise is broken, at rest."""
        runs = [key.partition("/")[0] for key in await self.subject.read()]
        if len(runs) > len(set(runs)):
            return f"handled twice: {sorted(runs)}"
        bucketing = await (await self.subject.ring()).bucketing()
        letters = await self.letters.page(Filter(), limit=1000)
        for letter in letters:
            instant = letter.message.instant if letter.message else 0
            if letter.reason != Undecidable.TOO_OLD.value or not bucketing.may_forget(bucketing.start(instant), letter.at):
                return f"refused without need: {letter.message} for {letter.reason!r}"
            if letter.attempts:
                return f"counted: {letter.message} has {letter.attempts} failures"
        refused = {letter.message.id for letter in letters if letter.message}
        if lost := {message.id for message in self.sent} - set(runs) - refused:
            return f"lost: {lost}"
        announced = {dict(each.headers)["ce-id"] for each in await self.out.receive(1000, 0)}
        return f"first effects lost: {set(runs) - announced}" if set(runs) - announced else ""


async def played(subject: RingSubject, events: Sequence[Event]) -> str:
    """Play a history; gives what is wrong in the end."""
    simulated = SimulatedEndpoint(subject)
    await simulated.play(events)
    return await simulated.wrong()


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "optimistic"])
def test_time_and_copies_break_no_promise_of_a_ring_in_memory(blocking: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Once, not lost, and refused behind the horizon only: for any duplicates, delays, evictions and skew within limits."""

    @SOME
    @example(PENDING)
    @example(EARLY)
    @given(HISTORIES)
    def holds(events: list[Event]) -> None:
        assert asyncio.run(played(MemoryRings(blocking=blocking), events)) == ""

    holds()


@pytest.mark.slow
def test_time_and_copies_break_no_promise_of_a_ring_in_sqlite(tmp_path: Path) -> None:
    """The same, by the store that ships, on a clock that the test moves."""
    empty = tmp_path / "empty.db"
    asyncio.run(make_tables(empty))

    async def on_disk(events: list[Event]) -> str:
        with TemporaryDirectory(dir=tmp_path) as place:
            async with SqlRings.open(shutil.copy(empty, Path(place) / "ring.db")) as subject:
                return await played(subject, events)

    @FEW
    @example(PENDING)
    @example(EARLY)
    @given(HISTORIES)
    def holds(events: list[Event]) -> None:
        assert asyncio.run(on_disk(events)) == ""

    holds()


@pytest.mark.parametrize(
    ("kind", "events", "said"),
    [
        (rings.LabelBlindRing, [Sent(0)], "handled twice"),
        (rings.ForgetfulRing, [Sent(0), Copied(0), Worked(1)], "handled twice"),
        (rings.CarelessRing, PENDING, "first effects lost"),
        (rings.ImpatientRing, EARLY, "refused without need"),
    ],
)
async def test_a_ring_that_breaks_a_promise_is_seen(kind: type[WrappedRings], events: list[Event], said: str) -> None:
    """In one of those histories; and in the same history the ring that is not broken keeps its promises."""
    assert (await played(kind(MemoryRings(blocking=True)), events)).startswith(said)
    assert await played(MemoryRings(blocking=True), events) == ""


def test_a_ring_that_breaks_a_promise_is_found() -> None:
    """By nothing but the histories that all rings are put through."""

    def is_broken(events: list[Event]) -> bool:
        return asyncio.run(played(rings.LabelBlindRing(MemoryRings(blocking=True)), events)).startswith("handled twice")

    assert find(HISTORIES, is_broken, settings=SOME) == [Sent(-WIDTH_MS)]
