"""What a process counts by the minute, and when it asks the broker."""

from onceonly.algorithms.settlement import BatchReport
from onceonly.model.message import Message
from onceonly.model.minutes import MINUTE_MS, NO_WORK, Span, bucket_of
from onceonly.ports.maintenance import Backlog
from onceonly.runtime.maintenance.work_recorder import WorkRecorder
from onceonly.runtime.worker.run_times import RunTimes

NOW = 1_795_000_020_000


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> int:
        """Return what was set."""
        return self.at


def test_only_what_is_new_is_counted() -> None:
    """A worker counts since its start."""
    clock = SetClock()
    recorder = WorkRecorder(clock)
    recorder.count(BatchReport(handled=5, known=2, retried=1, dead=1), Span(runs={3: 7}))
    recorder.count(BatchReport(handled=8, known=2, retried=1, dead=2), Span(oldest=9))
    clock.at += MINUTE_MS
    recorder.count(BatchReport(handled=9, known=2, retried=1, dead=2), Span())
    first, second = recorder.history.minutes.values()
    assert first == Span(handled=8, failed=3, duplicates=2, oldest=9, runs={3: 7})
    assert second == Span(handled=1)
    assert sum(span.handled for span in recorder.history.quarters.values()) == 9


def test_the_broker_is_asked_once_a_minute_also_if_it_does_not_know() -> None:
    """An unknown number is not zero."""
    clock = SetClock()
    recorder = WorkRecorder(clock)
    assert recorder.asks
    recorder.learn(None)
    assert not recorder.asks
    assert recorder.history == NO_WORK
    clock.at += MINUTE_MS
    assert recorder.asks
    recorder.learn(Backlog(waiting=4, oldest=1000))
    assert [*recorder.history.minutes.values()] == [Span(waiting=4, oldest=1000)]


def test_what_maintenance_took_for_ended_is_not_reported_again() -> None:
    """It was added to the history of ended processes when the row of this process was removed."""
    recorder = WorkRecorder(SetClock())
    recorder.count(BatchReport(handled=5), Span())
    recorder.stored(recorder.history, is_new=True)
    assert sum(span.handled for span in recorder.history.minutes.values()) == 5
    recorder.count(BatchReport(handled=7), Span())
    recorder.stored(recorder.history, is_new=True)
    assert sum(span.handled for span in recorder.history.minutes.values()) == 2


def test_runs_of_handlers_are_counted_until_they_are_taken() -> None:
    """With the longest time that a message had waited; the id of a foreign message does not tell it."""
    clock = SetClock()
    times = RunTimes(clock)
    own = Message(id="0199-x", source="a", type="T", body=b"")
    own.__dict__["instant"] = NOW - 700
    times.started([own, Message(id="foreign", source="b", type="T", body=b"")], 5.0)
    times.ended(2, 0.25)
    times.ended(1, 0.0)
    assert times.take() == Span(oldest=700, runs={bucket_of(250): 2, 0: 1})
    assert times.take() == Span()
