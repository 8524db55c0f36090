"""The memory adapters, beyond what every adapter promises: both kinds of databases, leases, and the live driver."""

import asyncio

import pytest

from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore, MemoryUnit, Notebook
from onceonly.adapters.memory.transport import BrokerRules, MemoryTransport
from onceonly.adapters.memory.world import Live, PortOperation, WorldPart
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, HandlerFailed, LockTimeout, SetupError
from onceonly.model.message import Failure, FailureKind, Message, Send
from onceonly.model.record import Answer, Record
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, Topology

A, B = (Message(id=name, source="here", type="T", body=name.encode()) for name in "ab")


class Hands:
    """A clock that somebody moves."""

    def __init__(self) -> None:
        """Begin at one second."""
        self.time = 1_000

    def now(self) -> int:
        """Return the time."""
        return self.time


def record(message: Message, effects: int = 1) -> Record:
    """Make the record of a handled message."""
    return Record(message.identity, tuple(Send(message=message, to="sink") for _ in range(effects)))


def notebook(unit: MemoryUnit) -> Notebook:
    """Return a unit's notebook."""
    return unit.resources.get(Notebook)


async def failing(unit: MemoryUnit) -> None:
    """Run a handler that writes and fails."""
    async with unit.resources.attempt():
        notebook(unit).write("b", 1)
        notebook(unit).refuse("never")
        raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="bad"))


async def settled(task: asyncio.Task[MemoryUnit]) -> bool:
    """Let everybody have many turns; tell whether the task is done."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


async def test_a_blocking_store_waits_for_a_claim_and_then_finds_it_owed() -> None:
    """A copy in another unit does not run beside the first."""
    store = MemoryStore(Live(), "shop")
    first = await store.begin([A])
    second = asyncio.create_task(store.begin([A]))
    assert not await settled(second)
    await first.commit([record(A)])
    assert (await second).found.pending == (record(A),)


async def test_a_blocking_store_lets_the_next_in_when_a_unit_is_abandoned() -> None:
    """Abandoning needs no await and frees the claims."""
    store = MemoryStore(Live(), "shop")
    first = await store.begin([A])
    second = asyncio.create_task(store.begin([A]))
    assert not await settled(second)
    first.abandon()
    assert (await second).found.new == (A,)


async def test_an_optimistic_store_lets_both_begin_and_refuses_the_second_commit() -> None:
    """The loser leaves nothing."""
    store = MemoryStore(Live(), "shop", blocking=False)
    first, second = await store.begin([A]), await store.begin([A])
    notebook(first).write("a", "first")
    notebook(second).write("a", "second")
    await first.commit([record(A)])
    with pytest.raises(ConflictError):
        await second.commit([record(A)])
    assert store.notes() == (("a", "first"),)


async def test_a_claim_without_a_record_is_dropped_by_the_commit() -> None:
    """A message that failed or was postponed is new again."""
    store = MemoryStore(Live(), "shop")
    unit = await store.begin([A, B])
    await unit.commit([record(A, effects=0)])
    unit = await store.begin([A, B])
    assert (unit.found.done, unit.found.new) == ((A,), (B,))


async def test_another_body_under_the_same_identity_clashes() -> None:
    """The same id with another body is never taken for a copy."""
    store = MemoryStore(Live(), "shop")
    await (await store.begin([A])).commit([record(A)])
    other = Message(id="a", source="here", type="T", body=b"something else")
    unit = await store.begin([other])
    assert (unit.found.mismatched, unit.found.new, unit.found.pending, unit.found.done) == ((other,), (), (), ())


async def test_a_unit_that_is_over_commits_nothing() -> None:
    """After abandon, commit fails for sure."""
    store = MemoryStore(Live(), "shop")
    unit = await store.begin([A])
    unit.abandon()
    unit.abandon()
    with pytest.raises(CommitFailed):
        await unit.commit([record(A)])


async def test_an_isolated_unit_undoes_one_handlers_rows() -> None:
    """What others wrote stays."""
    store = MemoryStore(Live(), "shop")
    unit = await store.begin([A, B], isolated=True)
    async with unit.resources.attempt():
        notebook(unit).write("a", 1)
    with pytest.raises(HandlerFailed):
        await failing(unit)
    await unit.commit([record(A)])
    assert store.notes() == (("a", 1),)


async def test_a_lock_time_out_in_an_isolated_unit_is_the_handlers_alone() -> None:
    """In any other unit it stays what it is."""
    store, kinds = MemoryStore(Live(), "shop"), (LockTimeout, HandlerFailed)
    for kind, unit in zip(kinds, [await store.begin([each], isolated=each is B) for each in (A, B)], strict=True):
        with pytest.raises(kind) as raised:
            async with unit.resources.attempt():
                raise LockTimeout("another transaction has the lock")
    assert isinstance(raised.value, HandlerFailed)
    assert raised.value.failure.kind is FailureKind.LOCKED


async def test_a_refused_commit_leaves_nothing_and_says_why() -> None:
    """As a deferred constraint does."""
    store = MemoryStore(Live(), "shop")
    unit = await store.begin([A])
    notebook(unit).write("a", 1)
    notebook(unit).refuse("total must not be negative")
    with pytest.raises(CommitRefused, match="total must not be negative"):
        await unit.commit([record(A)])
    assert store.notes() == ()
    assert (await store.begin([A])).found.new == (A,)


async def test_only_a_notebook_is_offered_also_to_synchronous_handlers() -> None:
    """Any other type is a LookupError."""
    unit = await MemoryStore(Live(), "shop").begin([A])
    await unit.resources.run_sync(lambda get: get(Notebook))
    with pytest.raises(LookupError, match="int"):
        unit.resources.get(int)


async def test_records_are_listed_oldest_first_until_they_are_forgotten() -> None:
    """The relay asks for those stored before an instant."""
    clock = Hands()
    store = MemoryStore(Live(), "shop", clock=clock)
    for message in (B, A):
        await (await store.begin([message])).commit([record(message)])
        clock.time += 1_000
    assert await store.undispatched(1_000, 10) == ()
    assert await store.undispatched(clock.time, 10) == (record(B), record(A))
    assert await store.undispatched(clock.time, 1) == (record(B),)
    await store.forget([Record(B.identity)])
    await store.forget([Record(B.identity)])
    assert await store.undispatched(clock.time, 10) == (record(A),)
    assert (await store.begin([B])).found.done == (B,)


async def opened(clock: Hands, *, rules: BrokerRules | None = None) -> MemoryTransport:
    """Open a transport with one message waiting."""
    transport = MemoryTransport(Live(), "shop", clock=clock, lease=10, rules=rules)
    await transport.declare([Topology(endpoint="shop", events=("T",))])
    assert await transport.send([Send(message=A, to="shop")]) == (Answer.TAKEN,)
    return transport


async def test_a_lease_that_ends_by_the_clock_makes_a_suspect() -> None:
    """Nobody released it, so the process that held it may have been killed by it."""
    clock = Hands()
    transport = await opened(clock)
    (first,) = await transport.receive(5, 0)
    assert not first.suspect
    assert await transport.receive(5, 0) == ()
    clock.time += 10_000
    (again,) = await transport.receive(5, 0)
    assert again.suspect
    assert again.receipt != first.receipt


async def test_a_release_brings_it_back_unmarked() -> None:
    """Whoever gives back what was suspect takes the mark away."""
    clock = Hands()
    transport = await opened(clock)
    await transport.receive(5, 0)
    clock.time += 10_000
    (suspect,) = await transport.receive(5, 0)
    await transport.release([suspect])
    (again,) = await transport.receive(5, 0)
    assert not again.suspect


@pytest.mark.parametrize("redelivered", [True, False])
@pytest.mark.parametrize("accepts", [True, False])
async def test_a_late_ack_is_ignored_or_accepted_as_the_broker_does(*, accepts: bool, redelivered: bool) -> None:
    """Brokers differ, so both are here."""
    clock = Hands()
    transport = await opened(clock, rules=BrokerRules(accepts_late=accepts))
    late = await transport.receive(5, 0)
    clock.time += 10_000
    if redelivered:
        await transport.receive(5, 0)
    await transport.ack(late)
    depth = await transport.depth("shop")
    assert depth.waiting + depth.held == (0 if accepts else 1)


async def test_a_lease_that_is_extended_lasts() -> None:
    """One that has ended is not brought back."""
    clock = Hands()
    transport = await opened(clock)
    held = await transport.receive(5, 0)
    clock.time += 9_000
    await transport.extend(held)
    clock.time += 9_000
    assert await transport.receive(5, 0) == ()
    clock.time += 1_000
    await transport.extend(held)
    assert len(await transport.receive(5, 0)) == 1


async def test_a_delayed_message_waits_for_its_instant() -> None:
    """It is counted as delayed until then."""
    clock = Hands()
    transport = await opened(clock)
    await transport.send([Send(message=B, to="shop", due=clock.time + 5)])
    assert await transport.depth("shop") == Depth(waiting=1, held=0, delayed=1)
    assert len(await transport.receive(5, 0)) == 1
    clock.time += 5
    (delivery,) = await transport.receive(5, 0)
    assert delivery.body == b"b"


async def test_a_receiver_that_waits_is_woken_by_a_send_and_by_a_clock() -> None:
    """No polling interval is waited out for a message that comes."""
    clock = Hands()
    transport = await opened(clock)
    await transport.ack(await transport.receive(5, 0))
    waiting = asyncio.create_task(transport.receive(5, 60))
    await transport.send([Send(message=B, to="shop", due=clock.time + 5)])
    clock.time += 5
    assert [delivery.body for delivery in await waiting] == [b"b"]


async def test_an_event_goes_to_whoever_subscribed_and_a_command_where_it_can() -> None:
    """Nobody is fine for an event; a command needs its queue, and every body must fit."""
    live, clock = Live(), Hands()
    shop, ledger = (MemoryTransport(live, name, clock=clock, rules=BrokerRules(max_body=10)) for name in ("shop", "ledger"))
    await shop.declare([Topology(endpoint="shop", events=("T", "U")), Topology(endpoint="ledger", events=("T",))])
    await shop.declare([Topology(endpoint="shop", gone=("T",))])
    large = Message(id="c", source="here", type="T", body=b"x" * 11)
    unheard = Message(id="d", source="here", type="V", body=b"")
    sends = [Send(message=A), Send(message=unheard), Send(message=A, to="nowhere"), Send(message=large, to="shop")]
    assert await shop.send(sends) == (Answer.TAKEN, Answer.TAKEN, Answer.REFUSED, Answer.REFUSED)
    assert await shop.receive(5, 0) == ()
    assert [delivery.body for delivery in await ledger.receive(5, 0)] == [b"a"]
    with pytest.raises(SetupError, match="nowhere"):
        await shop.depth("nowhere")


async def test_a_retry_copy_remembers_what_happened_before() -> None:
    """Attempts, history and being alone travel with the copy."""
    transport = await opened(Hands())
    failed = Failure(kind=FailureKind.EXCEPTION, reason="bad")
    await transport.send([Send(message=B, to="shop", attempts=2, history=(failed,), alone=True)])
    copy = (await transport.receive(5, 0))[1]
    assert (copy.attempts, copy.history, copy.alone) == (2, (failed,), True)


async def test_dead_letters_are_stored_once_and_paged() -> None:
    """The first reason is kept."""
    clock = Hands()
    letters = MemoryDeadLetters(Live(), clock=clock)

    def letter(message: Message, reason: str) -> DeadLetter:
        return DeadLetter(endpoint="shop", reason=reason, headers=(), body=message.body, message=message)

    for one in (letter(A, "first"), letter(A, "second"), letter(B, "other")):
        await letters.add(one)
    first, other = await letters.page(Filter())
    assert (first.reason, other.reason, first.at) == ("first", "other", clock.time)
    assert await letters.page(Filter(endpoint="shop", type="T"), after=first.key) == (other,)
    assert await letters.page(Filter(), after="gone") == ()
    assert await letters.get(first.key) == first
    assert await letters.count(Filter(reason="oth")) == 1
    assert await letters.remove([first.key, "gone"]) == 1
    assert await letters.get(first.key) is None


async def test_a_cancelled_operation_did_not_happen() -> None:
    """Cancelled before its turn, it changes nothing."""
    store = MemoryStore(Live(), "shop")
    unit = await store.begin([A])
    notebook(unit).write("a", 1)
    commit = asyncio.create_task(unit.commit([record(A)]))
    await asyncio.sleep(0)
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    assert store.notes() == ()


def test_an_operation_that_must_not_wait_says_so_when_it_would() -> None:
    """A programming error, not an outcome."""
    with pytest.raises(RuntimeError, match="must wait"):
        Live().at_once(PortOperation("wait", WorldPart("somewhere", ()), lambda _part: None, ()))
