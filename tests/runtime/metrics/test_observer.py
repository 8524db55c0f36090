"""What the observer counts, on an endpoint in memory."""

from pathlib import Path

import pytest

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown
from onceonly.model.maintenance_journal import MaintenanceJournal, TaskRun
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send
from onceonly.model.record import Answer
from onceonly.model.retry import Retry
from onceonly.runtime.maintenance.tasks import ROTATION
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.observer import (
    MOST_DESTINATIONS,
    MOST_ERRORS,
    MOST_HANDLED,
    OTHER,
    CappedNames,
    EndpointLabels,
    MetricsObserver,
    dead_letter_kind,
    retry_kind,
    sent_at,
)
from onceonly.runtime.metrics.series import SeriesFile
from onceonly.runtime.observe.observed_ports import by_relay, observed
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind, OutcomeObserver
from tests.runtime.harness import SHOP, ScriptedHandlers, SimulatedEndpoint, failing

LABELS = EndpointLabels(name=SHOP, system="memory", types=frozenset({"order"}), store="memory://")


class Counted:
    """An observer with a file of its own, and what is in the file."""

    def __init__(self, file: SeriesFile, labels: EndpointLabels = LABELS) -> None:
        self.file = file
        self.metrics = MetricsObserver(file, [labels])

    def of(self, metric: catalog.Metric) -> dict[tuple[str, ...], int]:
        """Return the counts of a metric, those that are not 0, without the endpoint."""
        return {
            attributes[1:]: sum(numbers.counts)
            for (found, attributes), numbers in self.file.read()
            if found is metric and sum(numbers.counts)
        }

    async def ends(self, call: PortCall, error: Exception | None = None) -> None:
        """Let a call end."""
        self.metrics.ended(call, error, 0.01)


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """Make one with an empty file."""
    return Counted(SeriesFile.create(tmp_path / "metrics"))


async def test_each_delivery_is_counted_by_its_outcome(counted: Counted) -> None:
    """Handled, failed once and retried, given up; with the calls to the broker around it."""

    def script(message: Message, _resources: object) -> None:
        if message.id == "rejected":
            raise failing("no such order", FailureKind.REJECTED)
        if message.id == "fails" and handlers.started.count("fails") == 1:
            raise failing("not yet", FailureKind.EXCEPTION) from ValueError("not yet")

    handlers = ScriptedHandlers(script, Retry(immediate=5))
    simulated = await SimulatedEndpoint(handlers).open("a", "b", "rejected", "fails")
    await simulated.work(also=[OutcomeObserver(counted.metrics), counted.metrics])
    assert counted.of(catalog.MESSAGES) == {("order", "handled"): 3, ("order", "retried"): 1, ("order", "dead_letter"): 1}
    assert counted.of(catalog.CONSUMED) == {("memory", "receive", SHOP, ""): 5}
    assert counted.of(catalog.SENT) == {("memory", "send", "done", ""): 3, ("memory", "retry", SHOP, ""): 1}
    assert counted.of(catalog.RETRIES) == {("exception",): 1}
    assert counted.of(catalog.DEAD_LETTERS_STORED) == {("rejected",): 1}
    failed = {attributes[-1] for attributes in counted.of(catalog.PROCESS_DURATION)}
    assert failed == {"", "rejected", "ValueError"}
    assert counted.of(catalog.BATCH_SIZE)[()] >= 2
    assert set(counted.of(catalog.UNIT_DURATION)) >= {("begin",), ("commit",), ("dispatch",), ("forget",)}


async def test_calls_of_other_endpoints_are_not_counted(counted: Counted) -> None:
    """Several may share a process."""
    await counted.ends(PortCall(Point.HANDLE, "other", (Message(id="1", source="s", type="t", body=b""),)))
    assert counted.of(catalog.PROCESS_DURATION) == {}


async def test_what_a_relay_sends_is_counted_beside_all_that_is_sent(counted: Counted) -> None:
    """By the answer. The same port, used by the worker, is not the relay's."""
    simulated = await SimulatedEndpoint().open()
    ports = observed(simulated.ports, counted.metrics)
    searched = ports.for_relay()
    assert searched is not None
    send = Send(message=Message(id="1", source=SHOP, type="done", body=b""), to="sink")
    await ports.transport.send([send])
    assert counted.of(catalog.RELAYED) == {}
    await by_relay(searched).transport.send([send, Send(message=send.message, to="nowhere")])
    assert counted.of(catalog.RELAYED) == {("sent",): 1, ("refused",): 1}
    assert sum(counted.of(catalog.SENT).values()) == 3


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutcomeUnknown("lost"), "unknown"),
        (ConflictError("claimed"), "lost_race"),
        (ConflictError("deadlock detected"), "deadlock"),
        (CommitFailed("away"), None),
    ],
)
async def test_a_unit_that_ends_in_a_conflict_is_counted_by_kind(counted: Counted, error: Exception, kind: str | None) -> None:
    """At begin and at commit."""
    for point in (Point.BEGIN, Point.COMMIT, Point.FORGET):
        await counted.ends(PortCall(point, SHOP), error)
    assert counted.of(catalog.CONFLICTS) == ({} if kind is None else {(kind,): 2})


async def test_a_server_that_answers_again_is_counted_once(counted: Counted) -> None:
    """However many calls failed meanwhile."""
    for error in (None, CommitFailed("away"), CommitFailed("away"), None, None):
        await counted.ends(PortCall(Point.RECEIVE, SHOP, result=()), error)
    assert counted.of(catalog.RECONNECTS) == {("transport",): 1}


async def test_a_rotation_is_counted_once(counted: Counted) -> None:
    """By who noted it in the journal: later notes repeat it, and so does a journal that was read."""

    def journal(at: int, count: int) -> MaintenanceJournal:
        return MaintenanceJournal(at=at, interval=1, tasks={ROTATION: TaskRun(at=at, count=count)})

    await counted.ends(PortCall(Point.JOURNAL, SHOP, result=journal(5, 9)))
    for noted in (journal(5, 9), journal(6, 2), journal(6, 2)):
        await counted.ends(PortCall(Point.NOTE, SHOP, (noted,)))
    rotated = {row[1]: numbers.counts for row, numbers in counted.file.read() if row[0] is catalog.BUCKETS_ROTATED}
    assert rotated == {("memory://",): (2,)}


async def test_the_number_of_rows_is_bounded(counted: Counted) -> None:
    """Types without a handler, error classes and destinations are made up by others."""
    for number in range(200):
        error = type(f"Error{number}", (Exception,), {})("no")
        await counted.ends(PortCall(Point.HANDLE, SHOP, (Message(id="1", source="s", type="t", body=b""),)), error)
        send = Send(message=Message(id="1", source="s", type=f"type-{number}", body=b""))
        await counted.ends(PortCall(Point.DISPATCH, SHOP, (send,), result=(Answer.TAKEN,)))
        counted.metrics.settled(outcome_of(send.message))
    errors = {attributes[-1] for attributes in counted.of(catalog.PROCESS_DURATION)}
    assert (len(errors), "_OTHER" in errors) == (MOST_ERRORS + 1, True)
    destinations = {attributes[2] for attributes in counted.of(catalog.SENT)}
    assert (len(destinations), "other" in destinations) == (MOST_DESTINATIONS + 1, True)
    assert counted.of(catalog.MESSAGES) == {("other", "handled"): 200}


async def test_ids_and_bodies_are_in_no_row(counted: Counted) -> None:
    """Nor sources, headers or keys."""
    simulated = await SimulatedEndpoint().open("id-of-a-message")
    await simulated.work(also=[OutcomeObserver(counted.metrics), counted.metrics])
    assert not any("id-of-a-message" in value for row, _ in counted.file.read() for value in row[1])


def outcome_of(message: Message) -> MessageOutcome:
    """Make a message's outcome."""
    delivery = Delivery(receipt=1, queue=SHOP, headers=(), body=b"")
    return MessageOutcome(endpoint=SHOP, outcome=OutcomeKind.HANDLED, delivery=delivery, message=message, attempt=1)


@pytest.mark.parametrize(
    ("time", "sent"), [("1970-01-01T00:00:05Z", 5000), ("1970-01-01T01:00:05+01:00", 5000), ("", 0), ("yesterday", 0)]
)
def test_a_message_is_as_old_as_its_time_says(time: str, sent: int) -> None:
    """One that does not say has no age."""
    assert sent_at(Message(id="1", source="s", type="t", body=b"", time=time)) == sent


def test_kinds_of_retries_and_dead_letters() -> None:
    """By their last failure, or by what else made them."""
    message = Message(id="1", source="s", type="t", body=b"")
    failure = Failure(kind=FailureKind.TIMEOUT, reason="slow")
    assert retry_kind(Send(message=message, history=(failure,), due=5)) == "timeout"
    assert (
        retry_kind(Send(message=message, held=1))
        == retry_kind(Send(message=message, history=(failure,), held=1))
        == "interrupted"
    )
    assert retry_kind(Send(message=message, due=5)) == "later"
    letter = DeadLetter(endpoint=SHOP, reason="r", headers=(), body=b"")
    assert dead_letter_kind(letter) == "unreadable"
    assert dead_letter_kind(DeadLetter(endpoint=SHOP, reason="r", headers=(), body=b"", message=message)) == "rejected"


def test_names_that_are_known_stay() -> None:
    """Also when there are too many others."""
    capped = CappedNames(1, "rest", ["known"])
    assert [capped(name) for name in ("known", "", "new", "rest")] == ["known", "", "rest", "rest"]


async def test_an_endpoint_with_thousands_of_types_has_a_bounded_number_of_rows(tmp_path: Path) -> None:
    """The first 200 by name have their own; the others are counted together."""
    types = frozenset(f"Event{number:04}" for number in range(3000))
    counted = Counted(SeriesFile.create(tmp_path / "metrics"), EndpointLabels(name=SHOP, types=types))
    for type_ in types:
        message = Message(id="1", source="s", type=type_, body=b"")
        delivery = Delivery(receipt=0, queue=SHOP, headers=(), body=b"")
        counted.metrics.settled(
            MessageOutcome(
                endpoint=SHOP,
                outcome=OutcomeKind.HANDLED,
                delivery=delivery,
                message=message,
                attempt=1,
                error="",
                started_at=0,
                ended_at=0,
                batch=1,
                unit=1,
            )
        )
    handled = counted.of(catalog.MESSAGES)
    assert len(handled) == MOST_HANDLED + 1
    assert handled[OTHER, "handled"] == 3000 - MOST_HANDLED
