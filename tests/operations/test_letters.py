"""What can be done with dead letters."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.assembly.parts import BucketClock
from onceonly.formats.cloudevents import is_copy, take_apart
from onceonly.model.action import ActionKind, ActionScope, ItemOutcome
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import OutcomeUnknown, SetupError
from onceonly.model.identity import NAME_BYTES, Identity, instant_in, timed_id
from onceonly.model.message import EXPIRES, HOPS, PARTITION_KEY, Message, Send
from onceonly.model.record import Answer
from onceonly.model.ring import ANYWAY, Bucketing, Undecidable
from onceonly.operations.action_runner import ActionRunner
from onceonly.operations.actions import ActionParts, Operator, action_log_of, confirm, new_action
from onceonly.operations.letters import PAGE, choose, find
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly_conformance.clock import ManualClock


def letter(number: int, *, type_: str = "PlaceOrder", reason: str = "boom", endpoint: str = "shop") -> DeadLetter:
    """Make a letter with a message."""
    message = Message(id=str(number), source="cli", type=type_, body=b'{"n": %d}' % number)
    return DeadLetter(endpoint=endpoint, reason=reason, headers=(), body=message.body, message=message, attempts=8)


class SimulatedEndpoint:
    """A broker with one endpoint, and its dead letters."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        driver = Live()
        self.letters = MemoryDeadLetters(driver, clock=self.clock)
        self.transport = MemoryTransport(driver, "shop", clock=self.clock)

    async def opened(self, *letters: DeadLetter) -> "SimulatedEndpoint":
        """Declare the endpoint, and store these letters."""
        await self.transport.declare([Topology(endpoint="shop")])
        for each in letters:
            await self.letters.add(each)
        return self

    async def retry(
        self,
        scope: ActionScope,
        *,
        head_start: float = 0.05,
        anyway: bool = False,
        buckets: BucketClock | None = None,
        tick: Callable[[int], object] = int,
    ) -> ActionRunner:
        """Send these back; `buckets` is what is known of their store."""

        async def bucket_clock() -> BucketClock | None:
            return buckets

        environment = Environment(clock=self.clock)
        parts = ActionParts(
            letters=self.letters,
            log=action_log_of(self.letters, environment),
            transport=self.transport,
            bucket_clock=bucket_clock,
            environment=environment,
            head_start=head_start,
        )
        kind = ActionKind.RETRY_ANYWAY if anyway else ActionKind.RETRY
        action = await confirm(parts, new_action(Operator("ana", "cli"), kind, scope=scope))
        runner = ActionRunner(parts, tick=tick)
        await runner.run(action.position)
        return runner


async def test_letters_are_chosen_by_filter_however_many_there_are() -> None:
    """All pages are read, unless a limit is given."""
    simulated = await SimulatedEndpoint().opened(*(letter(n, type_="even" if n % 2 == 0 else "odd") for n in range(250)))
    assert len(await choose(simulated.letters, Filter(type="even"), limit=1000)) == 125
    assert len(await choose(simulated.letters, Filter(), limit=7)) == 7


async def test_the_beginning_of_a_key_is_enough_if_it_is_the_only_one() -> None:
    """A key that names nothing, or too much, is an error that says so."""
    simulated = await SimulatedEndpoint().opened(*(letter(n) for n in range(40)))
    wanted = letter(3)
    assert (await find(simulated.letters, wanted.key)).key == (await find(simulated.letters, wanted.key[:20])).key == wanted.key
    with pytest.raises(SetupError, match="no dead letter"):
        await find(simulated.letters, "nothing")
    ((shared, _),) = Counter(letter(n).key[0] for n in range(40)).most_common(1)
    with pytest.raises(SetupError, match="write more digits"):
        await find(simulated.letters, shared)


async def test_a_retried_message_goes_back_with_its_identity_and_its_letter_is_gone() -> None:
    """It comes as a copy of ours, alone in its unit, with a fresh count, and not before its letter was removed."""
    simulated = await SimulatedEndpoint().opened(letter(1), letter(2))
    done = await simulated.retry(ActionScope(keys=(letter(1).key,)))
    assert (done.sent, done.kept) == (1, [])
    assert [left.key for left in await choose(simulated.letters, Filter(), limit=1000)] == [letter(2).key]
    assert await simulated.transport.receive(10, 0) == ()
    simulated.clock.advance(50)
    (delivery,) = await simulated.transport.receive(10, 0)
    event = take_apart(delivery.headers, delivery.body)
    assert (event.attributes["source"], event.attributes["id"], event.body) == ("cli", "1", b'{"n": 1}')
    assert is_copy(delivery)
    assert delivery.alone
    assert delivery.attempts == 0


async def test_a_retried_message_begins_a_new_chain_and_does_not_expire() -> None:
    """So that a person lets a chain that was too long go on, and has an expired message handled. All else stays."""
    far = letter(1)
    assert far.message is not None
    extensions = ((HOPS, "10001"), ("causationid", "c"), (EXPIRES, "2020-01-01T00:00:00Z"), (PARTITION_KEY, "k"))
    far = replace(far, message=replace(far.message, extensions=extensions, headers=(("tenant", "a"), ("tenant", "b"))))
    simulated = await SimulatedEndpoint().opened(far)
    await simulated.retry(ActionScope(keys=(far.key,)))
    simulated.clock.advance(50)
    (came,) = await simulated.transport.receive(10, 0)
    event = take_apart(came.headers, came.body)
    assert [event.attributes.get(name) for name in (HOPS, EXPIRES, "causationid", PARTITION_KEY)] == [None, None, "c", "k"]
    assert event.headers == (("tenant", "a"), ("tenant", "b"))


async def test_a_letter_that_cannot_be_retried_stays_and_says_why() -> None:
    """No identity, or no queue to go back to."""
    nameless = DeadLetter(endpoint="shop", reason="no id", headers=(), body=b"?")
    homeless = letter(1, endpoint="gone")
    simulated = await SimulatedEndpoint().opened(nameless, homeless)
    done = await simulated.retry(ActionScope())
    reasons = dict(done.kept)
    assert done.sent == 0
    assert "no identity" in reasons[nameless.key]
    assert "endpoint 'gone' has no queue" in reasons[homeless.key]
    simulated.transport.traits = replace(simulated.transport.traits, has_queues=False)
    assert "its transport has no queues: export it" in dict((await simulated.retry(ActionScope())).kept)[homeless.key]
    assert len(await choose(simulated.letters, Filter(), limit=1000)) == 2


def undecidable(number: int, bar: Undecidable, instant: int = 17) -> DeadLetter:
    """Make the letter of a message that its store could not judge."""
    plain = letter(number, reason=bar.value)
    assert plain.message is not None
    id_ = timed_id(plain.message.source, instant, number.to_bytes(NAME_BYTES, "big"))
    return replace(plain, message=replace(plain.message, id=id_, extensions=(("causationid", "c"),)))


async def test_a_message_behind_the_horizon_goes_back_only_anyway_and_with_a_mark() -> None:
    """Its store would refuse it again; with the mark it is claimed as what it is now, under the same identity."""
    simulated = await SimulatedEndpoint().opened(undecidable(1, Undecidable.TOO_OLD))
    done = await simulated.retry(ActionScope())
    assert (done.sent, len(await choose(simulated.letters, Filter(), limit=1000))) == (0, 1)
    assert "--anyway" in dict(done.kept)[undecidable(1, Undecidable.TOO_OLD).key]
    done = await simulated.retry(ActionScope(keys=(undecidable(1, Undecidable.TOO_OLD).key,)), anyway=True)
    simulated.clock.advance(50)
    (delivery,) = await simulated.transport.receive(10, 0)
    event = take_apart(delivery.headers, delivery.body)
    assert (done.sent, event.attributes["source"]) == (1, "cli")
    assert instant_in(Identity("cli", event.attributes["id"])) == 17
    assert (event.attributes[ANYWAY], event.attributes["causationid"]) == ("1", "c")


async def test_a_message_from_the_future_goes_back_as_it_is_when_its_time_has_come() -> None:
    """Anyway marks it; other letters are not marked whatever was said."""
    early, plain = undecidable(1, Undecidable.TOO_NEW), replace(undecidable(2, Undecidable.TOO_NEW), reason="boom")
    simulated = await SimulatedEndpoint().opened(early, plain)
    for anyway, marks in ((False, {None}), (True, {"1", None})):
        assert (await simulated.retry(ActionScope(), anyway=anyway)).sent == 2
        simulated.clock.advance(50)
        found = [take_apart(each.headers, each.body) for each in await simulated.transport.receive(10, 0)]
        assert {event.attributes.get(ANYWAY) for event in found} == marks
        assert {instant_in(Identity("cli", event.attributes["id"])) for event in found} == {17}
        for each in (early, plain):
            await simulated.letters.add(each)


@pytest.mark.parametrize(("before", "is_kept"), [(1, True), (0, False)])
async def test_a_message_from_the_future_is_kept_until_its_bucket_may_hold_it(before: int, *, is_kept: bool) -> None:
    """It would only be refused again; from when on it is not, is told. Three slices ahead there is room."""
    bucketing = Bucketing(width=3_600_000)
    instant = 1_900_000_000_000
    early = undecidable(1, Undecidable.TOO_NEW, instant)
    opens = bucketing.start(instant) - 3 * bucketing.width
    assert bucketing.undecidable_reason(instant, None, opens) is Undecidable.SLOT_NOT_READY
    assert bucketing.undecidable_reason(instant, None, opens - 1) is Undecidable.TOO_NEW
    simulated = await SimulatedEndpoint().opened(early)
    buckets = BucketClock(bucketing, opens - before, bucketing)
    done = await simulated.retry(ActionScope(), buckets=buckets)
    assert (done.sent, done.early) == (0 if is_kept else 1, [])
    assert dict(done.kept) == ({early.key: KEPT} if is_kept else {})
    if is_kept:
        assert (await simulated.retry(ActionScope(keys=(early.key,)), anyway=True, buckets=buckets)).sent == 1


KEPT = (
    "its time, 2030-03-17T17:46:40Z, is in the future; retry it after 2030-03-17T14:00:00Z by the clock of its store, correct "
    "that clock, or use --anyway"
)


async def test_without_a_bucket_clock_it_goes_back_with_a_warning() -> None:
    """As when only the place of the letters was named. An instant that no calendar has is told as the last one."""
    early, never = undecidable(1, Undecidable.TOO_NEW, 1_900_000_000_000), undecidable(2, Undecidable.TOO_NEW, (1 << 48) - 1)
    done = await (await SimulatedEndpoint().opened(early, never)).retry(ActionScope())
    assert (done.sent, done.kept) == (2, [])
    words = "it becomes a dead letter again if its time, {}, is still in the future for its store"
    assert dict(done.early) == {
        early.key: words.format("2030-03-17T17:46:40Z"),
        never.key: words.format("9999-12-31T23:59:59Z"),
    }


async def test_a_letter_is_kept_when_it_could_be_a_new_one_already() -> None:
    """Without any head start the message may have failed again: its letter stays."""
    simulated = await SimulatedEndpoint().opened(letter(1))
    done = await simulated.retry(ActionScope(), head_start=0)
    (item,) = await done.parts.log.items(1)
    assert (done.sent, item.outcome, "too slowly" in item.detail) == (1, ItemOutcome.WAITING, True)
    assert len(await choose(simulated.letters, Filter(), limit=1000)) == 1


class Reviving(MemoryDeadLetters):
    """Has every letter back as soon as it was removed: its message failed again at once, and so did a new one."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove, and add again behind all others."""
        found = [found for key in keys if (found := await self.get(key))]
        removed = await super().remove(keys)
        for number, each in enumerate(found):
            await self.add(each)
            await self.add(letter(1_000_000 + int(each.message.id if each.message else number)))
        return removed


async def test_all_are_sent_back_batch_by_batch_and_removed() -> None:
    """However many there are; those the filter leaves out stay."""
    simulated = await SimulatedEndpoint().opened(*(letter(n, reason="late" if n % 5 == 0 else "boom") for n in range(3 * PAGE)))
    ticks: list[int] = []
    done = await simulated.retry(ActionScope(reason="boom"), head_start=60, tick=ticks.append)
    assert (done.sent, done.kept, sum(ticks)) == (240, [], 240)
    assert max(ticks) <= PAGE
    assert {left.reason for left in await choose(simulated.letters, Filter(), limit=1000)} == {"late"}
    simulated.clock.advance(60_000)
    assert len(await simulated.transport.receive(1000, 0)) == 240


async def test_a_letter_that_comes_back_during_a_retry_is_not_sent_again() -> None:
    """The bulk is what was there when it began, so it ends however fast messages fail."""
    simulated = SimulatedEndpoint()
    simulated.letters = Reviving(Live(), clock=simulated.clock)
    await simulated.opened(*(letter(n) for n in range(PAGE + 50)))
    done = await simulated.retry(ActionScope(), head_start=60)
    assert (done.sent, done.kept) == (PAGE + 50, [])
    assert await simulated.letters.count(Filter()) == 2 * (PAGE + 50)


class Deaf(MemoryTransport):
    """Takes the first batch; of every other nobody knows what became of it."""

    batches = 0

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Take the first batch."""
        self.batches += 1
        if self.batches > 1:
            raise OutcomeUnknown("cut")
        return await super().send(sends)


async def test_no_letter_is_removed_before_its_message_was_taken() -> None:
    """What nobody knows about stays, and says so."""
    simulated = SimulatedEndpoint()
    simulated.transport = Deaf(Live(), "shop", clock=simulated.clock)
    await simulated.opened(*(letter(n) for n in range(PAGE + 1)))
    done = await simulated.retry(ActionScope(), head_start=60)
    assert done.sent == PAGE
    assert (
        [left.key for left in await choose(simulated.letters, Filter(), limit=1000)]
        == [letter(PAGE).key]
        == [key for key, _ in done.kept]
    )
    assert "did not confirm it" in done.kept[0][1]
