"""What became of each delivered message, derived from port calls alone, whatever its units went through."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.algorithms.delivery import deliver
from onceonly.config.worker import WorkerSettings
from onceonly.errors import CommitRefused, ConflictError, OutcomeUnknown
from onceonly.model.errors import HandlerFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send
from onceonly.model.record import Answer, Record
from onceonly.model.retry import Retry
from onceonly.model.ring import Undecidable
from onceonly.ports.admission import AdmissionResult
from onceonly.ports.store import BeginResult, UndecidableMessage, Unit
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observers, read_observers
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind, OutcomeObserver, error_name
from tests.runtime.harness import SHOP, CallTally, ScriptedHandlers, SimulatedEndpoint, failing

ALL = WorkerSettings(batch_size=100, wait=0.05, concurrency=1)


class WritesOutcomesDown:
    """Keeps every outcome, and the ids of the messages that were released."""

    def __init__(self) -> None:
        self.outcomes: list[MessageOutcome] = []
        self.back: list[str] = []

    def settled(self, outcome: MessageOutcome) -> None:
        """Keep it."""
        self.outcomes.append(outcome)

    def released(self, endpoint: str, message: Message) -> None:
        """Keep its id."""
        assert endpoint == SHOP
        self.back.append(message.id)

    @property
    def seen(self) -> list[tuple[str, str]]:
        """Ids and outcomes, in order."""
        return [("" if each.message is None else each.message.id, each.outcome.value) for each in self.outcomes]


class Tracked:
    """An endpoint in memory, and what its observer reported."""

    def __init__(self, simulated: SimulatedEndpoint) -> None:
        self.simulated = simulated
        self.log = WritesOutcomesDown()
        self.observer = OutcomeObserver(self.log)

    async def work(self, settings: WorkerSettings = ALL, **options: Any) -> None:
        """Run a worker until the queue is empty."""
        await self.simulated.work(settings, also=[self.observer], **options)

    async def one_batch(self, limit: int = 100) -> None:
        """Receive and deliver once, without a worker."""
        ports = observed(self.simulated.ports, self.observer)
        await deliver(await ports.transport.receive(limit, 0), ports)

    def has_forgotten_all(self) -> bool:
        """Return whether nothing is left of what was settled."""
        kept = (self.observer._deliveries, self.observer._messages, self.observer._by_identity, self.observer._units)
        return not any(kept)


async def track(*ids: str, handlers: ScriptedHandlers | None = None) -> Tracked:
    """Return a tracked endpoint with these messages in its queue."""
    return Tracked(await SimulatedEndpoint(handlers).open(*ids))


def fails(*bad: str, times: int = 1, kind: FailureKind = FailureKind.EXCEPTION, retry: Retry | None = None) -> ScriptedHandlers:
    """Return handlers that fail for these ids, so many times each."""

    def script(message: Message, _resources: object) -> None:
        if message.id in bad and handlers.started.count(message.id) <= times:
            raise failing(f"no {message.id}", kind)

    handlers = ScriptedHandlers(script, retry)
    return handlers


async def test_handled_messages_are_reported_once_each_with_their_batch_and_unit() -> None:
    """One batch, one unit, one outcome each."""
    tracked = await track("a", "b")
    await tracked.work()
    assert tracked.log.seen == [("a", "handled"), ("b", "handled")]
    first, second = tracked.log.outcomes
    assert (first.batch, first.unit) == (second.batch, second.unit) == (1, 1)
    assert (first.endpoint, first.attempt, first.error, first.is_copy) == (SHOP, 1, "", False)
    assert 0 < first.started_at <= first.ended_at <= second.started_at <= second.ended_at
    assert tracked.has_forgotten_all()


async def test_a_copy_in_the_same_batch_is_a_duplicate() -> None:
    """One identity is one message: its handler runs once, and each delivery has an outcome."""
    tracked = await track("a", "a", "b")
    await tracked.work()
    assert sorted(tracked.log.seen) == [("a", "duplicate"), ("a", "handled"), ("b", "handled")]
    assert [each.is_copy for each in tracked.log.outcomes if each.outcome is OutcomeKind.DUPLICATE] == [True]
    assert tracked.has_forgotten_all()


async def test_a_copy_in_a_later_batch_is_a_duplicate() -> None:
    """Its claim is known, and no handler ran."""
    tracked = await track("a")
    await tracked.work()
    await tracked.simulated.send("a")
    await tracked.work()
    assert tracked.log.seen == [("a", "handled"), ("a", "duplicate")]
    late = tracked.log.outcomes[1]
    assert (late.started_at, late.ended_at, late.is_copy) == (0, 0, False)
    assert (late.batch, late.unit) == (2, 2)


@pytest.mark.parametrize("outermost", [True, False])
async def test_a_crash_after_the_commit_has_no_outcome_and_the_next_delivery_is_redispatched(outermost: bool) -> None:  # noqa: FBT001 - pytest
    """Whether the observer sees the commit return or the process die there, nothing was settled."""
    tracked = await track("a")
    crash = CrashAt("after-commit")
    both = (crash, tracked.observer) if outermost else (tracked.observer, crash)
    ports = observed(tracked.simulated.ports, Observers(*both))
    with pytest.raises(ProcessCrash):
        await deliver(await ports.transport.receive(10, 0), ports)
    assert tracked.log.seen == tracked.log.back == []
    await tracked.simulated.bury_the_dead()
    restarted = Tracked(tracked.simulated)
    await restarted.work()
    # the suspect is sent back once, as nobody knows what its process died from; then only its message is sent
    assert restarted.log.seen == [("a", "retried"), ("a", "redispatched")]
    assert restarted.log.outcomes[1].started_at == 0


async def test_a_failed_message_is_retried_and_then_handled() -> None:
    """With the number of the attempt, and the class of the exception."""
    tracked = await track("a", handlers=fails("a"))
    await tracked.work()
    assert tracked.log.seen == [("a", "retried"), ("a", "handled")]
    retried, handled = tracked.log.outcomes
    assert (retried.attempt, retried.error, handled.attempt, handled.error) == (1, "exception", 2, "")
    assert retried.ended_at >= retried.started_at > 0


async def test_the_class_of_the_users_exception_is_the_error() -> None:
    """With its module, but for built-ins; without an exception, the kind of failure."""
    caused = failing("no stock")
    caused.__cause__ = ValueError("no stock")
    assert error_name(caused) == "ValueError"
    caused.__cause__ = OutcomeUnknown("cut")
    assert error_name(caused) == "onceonly.errors.OutcomeUnknown"
    assert error_name(failing("late", FailureKind.TIMEOUT)) == "timeout"


async def test_the_class_of_a_group_of_one_is_that_of_its_exception() -> None:
    """A handler with a task group raises nothing else. Several exceptions have no common class."""
    caused, inner = failing("no stock"), failing("no stock")
    caused.__cause__ = ExceptionGroup("tasks", [ExceptionGroup("tasks", [ValueError("no stock")])])
    assert error_name(caused) == "ValueError"
    inner.__cause__ = KeyError("no stock")
    caused.__cause__ = ExceptionGroup("of a provider", [inner])
    assert error_name(caused) == "KeyError"
    caused.__cause__ = ExceptionGroup("tasks", [ValueError(), KeyError()])
    assert error_name(caused) == "ExceptionGroup"


async def test_a_unit_that_runs_again_reports_each_message_once() -> None:
    """The first run was rolled back with the bad message; the second is isolated."""
    tracked = await track("a", "bad", "c", handlers=fails("bad"))
    await tracked.one_batch()
    assert sorted(tracked.simulated.handlers.started) in (["a", "a", "bad", "bad", "c"], ["a", "bad", "bad", "c", "c"])
    assert sorted(tracked.log.seen) == [("a", "handled"), ("bad", "handled"), ("c", "handled")]
    assert {each.unit for each in tracked.log.outcomes} == {2}
    assert tracked.has_forgotten_all()


async def test_a_message_that_fails_in_both_runs_is_retried_and_the_others_are_handled() -> None:
    """Its savepoint undoes it alone."""
    tracked = await track("a", "bad", "c", handlers=fails("bad", times=2))
    await tracked.one_batch()
    assert sorted(tracked.log.seen) == [("a", "handled"), ("bad", "retried"), ("c", "handled")]
    errors = {each.message.id: each.error for each in tracked.log.outcomes if each.message}
    assert errors == {"a": "", "bad": "exception", "c": ""}


class RefusesToCommit(MemoryStore):
    """Refuses each commit with the record of one message, as a deferred constraint does."""

    bad: str

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin a unit that refuses."""
        unit = await super().begin(messages, isolated=isolated)
        commit = unit.commit

        async def refusing(records: Sequence[Record]) -> None:
            if any(record.identity.id == self.bad for record in records):
                raise CommitRefused("constraint violated")
            await commit(records)

        unit.commit = refusing  # type: ignore[method-assign]
        return unit


async def test_a_unit_that_is_split_in_halves_reports_each_message_once() -> None:
    """Only the commit shows that there is a bad message, so its unit is halved until it is found."""
    tracked = await track("a", "b", "c", "bad", "e")
    store = RefusesToCommit(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    store.bad = "bad"
    tracked.simulated.ports = tracked.simulated.ports._replace(store=store)
    await tracked.one_batch()
    assert sorted(tracked.log.seen) == [
        ("a", "handled"),
        ("b", "handled"),
        ("bad", "retried"),
        ("c", "handled"),
        ("e", "handled"),
    ]
    (bad,) = [each for each in tracked.log.outcomes if each.outcome is OutcomeKind.RETRIED]
    assert bad.error == "onceonly.errors.CommitRefused"
    assert len({each.unit for each in tracked.log.outcomes}) > 2
    assert tracked.has_forgotten_all()


class EachAlone(MemoryStore):
    """Each message is a unit of its own, as an entity is."""

    def unit_key(self, message: Message) -> str:
        """Return a key of its own."""
        return message.id


async def test_units_of_one_batch_are_told_apart() -> None:
    """They share the batch, and run side by side."""
    tracked = await track("a", "b", "c", handlers=fails("b", times=1))
    store = EachAlone(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    tracked.simulated.ports = tracked.simulated.ports._replace(store=store)
    await tracked.work()
    first = [each for each in tracked.log.outcomes if each.batch == 1]
    assert sorted((each.message.id, each.outcome.value) for each in first if each.message) == [
        ("a", "handled"),
        ("b", "retried"),
        ("c", "handled"),
    ]
    assert len({each.unit for each in first}) == 3
    assert tracked.log.seen.count(("b", "handled")) == 1
    assert tracked.has_forgotten_all()


class FailsOnce(MemoryStore):
    """Raises at the first commit, after it was made or instead of it."""

    error: Exception
    is_made: bool
    left = 1

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin a unit whose commit fails."""
        unit = await super().begin(messages, isolated=isolated)
        commit: Callable[[Sequence[Record]], Awaitable[None]] = unit.commit

        async def failing_commit(records: Sequence[Record]) -> None:
            self.left -= 1
            if self.left < 0 or self.is_made:
                await commit(records)
            if self.left >= 0:
                raise self.error

        unit.commit = failing_commit  # type: ignore[method-assign]
        return unit


@pytest.mark.parametrize(
    ("error", "is_made", "then"),
    [
        (ConflictError("another worker won"), False, "handled"),
        (OutcomeUnknown("connection cut"), False, "handled"),
        (OutcomeUnknown("connection cut"), True, "redispatched"),
    ],
)
async def test_lost_races_and_unknown_commits_have_no_outcome_before_the_next_delivery(
    error: Exception,
    is_made: bool,  # noqa: FBT001 - pytest
    then: str,
) -> None:
    """The messages are released: what happened is known when they come again."""
    tracked = await track("a", "b")
    store = FailsOnce(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    store.error, store.is_made = error, is_made
    tracked.simulated.ports = tracked.simulated.ports._replace(store=store)
    await tracked.one_batch()
    assert (tracked.log.seen, sorted(tracked.log.back)) == ([], ["a", "b"])
    await tracked.one_batch()
    assert sorted(tracked.log.seen) == [("a", then), ("b", then)]
    assert tracked.has_forgotten_all()


class BrokerThatAnswers(MemoryTransport):
    """Answers sends of events as it is told."""

    answer = Answer.TAKEN

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Answer so; retry copies are taken."""
        if self.answer is Answer.TAKEN or any(send.to == SHOP for send in sends):
            return await super().send(sends)
        return tuple(self.answer for _ in sends)


@pytest.mark.parametrize("answer", [Answer.UNKNOWN, Answer.REFUSED])
async def test_a_committed_message_is_handled_even_if_the_broker_does_not_take_what_it_sent(answer: Answer) -> None:
    """The handler's work is final. The next delivery sends the messages, and is no second handling."""
    tracked = await track("a")
    broker = BrokerThatAnswers(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    broker.answer = answer
    tracked.simulated.ports = tracked.simulated.ports._replace(transport=broker)
    await tracked.one_batch()
    assert (tracked.log.seen, tracked.log.back) == ([("a", "handled")], [])
    broker.answer = Answer.TAKEN
    await tracked.one_batch()
    assert tracked.log.seen[1:] == [("a", "redispatched")]


async def test_a_message_that_is_given_up_is_a_dead_letter() -> None:
    """With its last error and the number of its last attempt."""
    tracked = await track("a", handlers=fails("a", times=9, retry=Retry(immediate=1, delayed=0)))
    await tracked.work()
    assert tracked.log.seen == [("a", "retried"), ("a", "dead_letter")]
    assert (tracked.log.outcomes[1].attempt, tracked.log.outcomes[1].error) == (2, "exception")
    assert tracked.has_forgotten_all()


async def test_what_cannot_be_read_is_a_dead_letter_without_a_message() -> None:
    """It has no identity, but it was delivered."""

    class ReadsNothing(ScriptedHandlers):
        def read(self, delivery: Delivery) -> Any:
            """Read only bodies that are JSON objects."""
            return super().read(Delivery(receipt=0, queue="", headers=(), body=b""))

    tracked = await track("a", handlers=ReadsNothing())
    await tracked.work()
    assert tracked.log.seen == [("", "dead_letter")]
    assert tracked.log.outcomes[0].error == "unreadable"
    assert tracked.has_forgotten_all()


async def test_another_body_under_a_known_id_is_a_dead_letter() -> None:
    """And in one batch with the first body, it is released first, and disturbs nothing."""
    tracked = await track("a")
    other = Message(id="a", source="test", type="order", body=b'{"other": 1}')
    await tracked.simulated.transport.send([Send(message=other, to=SHOP)])
    await tracked.work()
    assert sorted(tracked.log.seen) == [("a", "dead_letter"), ("a", "handled")]
    assert {each.error for each in tracked.log.outcomes} == {"", "payload_mismatch"}
    assert tracked.log.back == ["a"]
    assert tracked.has_forgotten_all()


class StoreThatForgot(MemoryStore):
    """Cannot decide about any message, for one reason."""

    reason: Undecidable

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin a unit in which nothing is claimed."""
        unit = await super().begin([], isolated=isolated)
        unit.found = BeginResult(undecidable=tuple(UndecidableMessage(each, self.reason) for each in messages))
        return unit


@pytest.mark.parametrize(
    ("reason", "outcome", "error"),
    [(Undecidable.TOO_OLD, "refused_old", "too_old"), (Undecidable.TOO_NEW, "dead_letter", "too_new")],
)
async def test_a_message_older_than_the_retention_is_refused_old(reason: Undecidable, outcome: str, error: str) -> None:
    """It is told apart from what failed: it may have been handled."""
    tracked = await track("a")
    store = StoreThatForgot(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    store.reason = reason
    tracked.simulated.ports = tracked.simulated.ports._replace(store=store)
    await tracked.work()
    assert tracked.log.seen == [("a", outcome)]
    assert tracked.log.outcomes[0].error == error


async def test_a_message_that_waits_for_its_bucket_is_retried() -> None:
    """Its copy comes later; the store has refused nothing for good."""
    tracked = await track("a")
    store = StoreThatForgot(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    store.reason = Undecidable.SLOT_NOT_READY
    tracked.simulated.ports = tracked.simulated.ports._replace(store=store)
    await tracked.one_batch()
    assert tracked.log.seen == [("a", "retried")]


async def test_what_admission_knows_to_be_done_is_a_duplicate() -> None:
    """Also when the unit found it new, or its record pending: it is done elsewhere, and only dropped."""

    class AdmitsNothing:
        async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
            """Know all of them."""
            return AdmissionResult(frozenset())

        def __getattr__(self, name: str) -> Any:
            return getattr(tracked.simulated.__class__().ports.admission, name)

    tracked = await track("a")
    admission: Any = AdmitsNothing()
    tracked.simulated.ports = tracked.simulated.ports._replace(admission=admission)
    await tracked.work()
    assert (tracked.log.seen, tracked.simulated.handlers.started) == ([("a", "duplicate")], [])


class StoresNoLetters(MemoryDeadLetters):
    """Does not answer the first time."""

    left = 1

    async def add(self, letter: Any) -> None:
        """Fail at first."""
        self.left -= 1
        if self.left >= 0:
            raise OutcomeUnknown("connection refused")
        await super().add(letter)


async def test_a_dead_letter_that_cannot_be_stored_has_no_outcome_yet() -> None:
    """It is released, and given up the next time."""
    tracked = await track("a", handlers=fails("a", times=9, kind=FailureKind.REJECTED))
    letters = StoresNoLetters(tracked.simulated.driver, clock=tracked.simulated.clock)
    tracked.simulated.ports = tracked.simulated.ports._replace(dead_letters=letters)
    await tracked.work()
    assert (tracked.log.back, tracked.log.seen) == (["a"], [("a", "dead_letter")])


class LosesAcks(MemoryTransport):
    """Does not answer the first acknowledgement."""

    left = 1

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Fail at first."""
        self.left -= 1
        if self.left >= 0:
            raise OutcomeUnknown("connection reset")
        await super().ack(deliveries)


@pytest.mark.parametrize("first", ["handled", "retried"])
async def test_a_lost_ack_reports_nothing_twice(first: str) -> None:
    """The delivery is released instead, with the outcome that it has; the next one has its own."""
    tracked = await track("a", handlers=fails("a", times=1 if first == "retried" else 0))
    broker = LosesAcks(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    tracked.simulated.ports = tracked.simulated.ports._replace(transport=broker)
    await tracked.work()
    expected = [("a", "handled"), ("a", "duplicate")]
    assert sorted(tracked.log.seen) == sorted(expected if first == "handled" else [("a", "retried"), *expected])
    assert tracked.has_forgotten_all()


async def test_a_duplicate_whose_ack_is_lost_has_no_outcome_before_its_next_delivery() -> None:
    """It is released, and comes again as a duplicate: one delivery was settled, and one outcome is reported."""
    tracked = await track("a")
    await tracked.work()
    broker = LosesAcks(tracked.simulated.driver, SHOP, clock=tracked.simulated.clock)
    tracked.simulated.ports = tracked.simulated.ports._replace(transport=broker)
    await tracked.simulated.send("a")
    await tracked.work()
    assert tracked.log.seen == [("a", "handled"), ("a", "duplicate")]
    assert tracked.log.back == ["a"]


async def test_batches_that_overlap_do_not_mix() -> None:
    """Copies of one message are in the hands of two loops at once."""
    tracked = await track(*["a", "b"] * 20)
    await tracked.work(WorkerSettings(batch_size=3, wait=0.05, concurrency=4))
    assert tracked.log.seen.count(("a", "handled")) == tracked.log.seen.count(("b", "handled")) == 1
    assert len(tracked.log.seen) == 40
    assert tracked.has_forgotten_all()


async def test_control_calls_and_foreign_calls_report_nothing() -> None:
    """A transport that is not observed, or a message that was never delivered, is none of its business."""
    tracked = await track("a")
    ports = observed(tracked.simulated.ports, tracked.observer)
    ports = ports._replace(transport=tracked.simulated.transport)
    await deliver(await ports.transport.receive(10, 0), ports)
    assert tracked.log.seen == []
    assert tracked.has_forgotten_all()


def test_only_observers_of_reads_are_asked_about_reads() -> None:
    """Without one, the handlers' own `read` is called."""
    outcomes = OutcomeObserver()
    assert read_observers(Observers(CallTally(), Observers(outcomes))) == (outcomes,)
    simulated = SimulatedEndpoint()
    assert observed(simulated.ports, CallTally()).handlers.read == simulated.handlers.read


async def test_a_killed_run_says_so() -> None:
    """Its process died while the handler was running; the supervisor's mark counts it."""
    tracked = await track("a", handlers=ScriptedHandlers(retry=Retry(immediate=1, delayed=0)))
    ports = observed(tracked.simulated.ports, tracked.observer)

    class Died:
        async def find_dead(self, identities: Sequence[Identity]) -> Any:
            """Blame all of them."""
            return type("Deaths", (), {"counted": dict.fromkeys(identities, 0), "explained": True})()

        def __getattr__(self, name: str) -> Any:
            return getattr(tracked.simulated.ports.run_markers, name)

    await tracked.simulated.transport.receive(1, 0)
    tracked.simulated.clock.advance(10**8)
    run_markers: Any = Died()
    await deliver(await ports.transport.receive(1, 0), ports._replace(run_markers=run_markers))
    assert tracked.log.seen == [("a", "retried")]
    assert tracked.log.outcomes[0].error == "killed"


def test_an_outcome_is_the_word_of_the_convention() -> None:
    """The names are part of the telemetry, and dashboards filter by them."""
    assert [each.value for each in OutcomeKind] == [
        "handled",
        "duplicate",
        "redispatched",
        "retried",
        "dead_letter",
        "refused_old",
    ]
    assert HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason="")).__cause__ is None
