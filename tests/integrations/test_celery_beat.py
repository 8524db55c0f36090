"""Scheduled tasks have the instant as their id, whichever beat sends them, and however late."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import crontab, schedule

from onceonly.integrations.celery import ExactlyOnceScheduler, ScheduledOnce

START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)


class Beat(ScheduledOnce, Scheduler):  # type: ignore[misc]
    """A scheduler without a file."""


class PlainBeat(Scheduler):  # type: ignore[misc]
    """The control."""


class Clock:
    """The time of a test."""

    def __init__(self) -> None:
        self.moment = START

    def now(self) -> datetime:
        """Return it."""
        return self.moment


class Beats:
    """Several beats on one schedule, each with its own last run, and what they have sent."""

    def __init__(self, made: Any, kind: type[Any], count: int = 2) -> None:
        self.sent: list[str] = []
        self.clock = Clock()
        self.app = Celery("beats", broker="memory://", set_as_current=False)
        self.app.conf.timezone = "UTC"
        self.schedulers = []
        for _ in range(count):
            scheduler = kind(self.app, schedule={})
            scheduler.send_task = lambda *_, task_id=None, **__: self.sent.append(task_id)
            entry = scheduler.Entry(name="report", task="tests.report", schedule=made(self.clock.now), app=self.app)
            scheduler.schedule["report"] = entry
            self.schedulers.append(scheduler)

    def tick(self, scheduler: Any, moment: datetime) -> None:
        """Let one beat look at this moment."""
        self.clock.moment = moment
        entry = scheduler.schedule["report"]
        if scheduler.is_due(entry)[0]:
            scheduler.reserve(entry)
            scheduler.apply_entry(entry)


@pytest.fixture(params=["crontab", "interval"])
def made(request: pytest.FixtureRequest) -> Any:
    """Make a schedule of ten minutes."""
    if request.param == "crontab":
        return lambda now: crontab(minute="*/10", nowfun=now)
    return lambda now: schedule(timedelta(minutes=10), nowfun=now)


def moments() -> Iterator[datetime]:
    """Return moments at irregular distances, for two hours."""
    seconds = 0.0
    for number in range(2000):
        seconds += 3.0 + number % 7 / 10
        yield START + timedelta(seconds=seconds)


def test_two_beats_send_the_same_ids(made: Any) -> None:
    """With the plain scheduler each task has two ids."""
    beats = Beats(made, Beat)
    for number, moment in enumerate(moments()):
        beats.tick(beats.schedulers[number % 2], moment)
    assert len(beats.sent) > len(set(beats.sent))
    last = max(beats.sent)
    ticks = [START + timedelta(minutes=10 * number) for number in range(1, 20)]
    wanted = [f"report@{each.isoformat().replace('+00:00', 'Z')}" for each in ticks]
    assert sorted(set(beats.sent)) == [each for each in wanted if each <= last]
    plain = Beats(made, PlainBeat)
    for number, moment in enumerate(moments()):
        plain.tick(plain.schedulers[number % 2], moment)
    assert set(plain.sent) == {None}


def test_one_beat_skips_no_tick(made: Any) -> None:
    """Each task that a single beat sends has an id of its own."""
    beats = Beats(made, Beat, count=1)
    for moment in moments():
        beats.tick(beats.schedulers[0], moment)
    assert len(beats.sent) == len(set(beats.sent)) > 9


def test_a_beat_that_was_down_sends_the_tick_that_was_due() -> None:
    """Another beat has sent it already."""
    beats = Beats(lambda now: crontab(minute=0, nowfun=now), Beat)
    beats.tick(beats.schedulers[0], START + timedelta(hours=1, seconds=1))
    beats.tick(beats.schedulers[1], START + timedelta(hours=1, minutes=7))
    assert beats.sent == ["report@2026-03-01T11:00:00Z"] * 2


def test_an_id_of_the_entry_is_kept_and_a_long_name_is_hashed() -> None:
    """The entry itself is not changed: it is stored."""
    beats = Beats(lambda now: crontab(minute=0, nowfun=now), Beat, count=1)
    entry = beats.schedulers[0].schedule["report"]
    entry.name = "x" * 300
    beats.schedulers[0].schedule[entry.name] = entry
    beats.clock.moment = START + timedelta(hours=1)
    beats.schedulers[0].apply_async(entry)
    assert beats.sent[0].endswith("@2026-03-01T11:00:00Z")
    assert len(beats.sent[0]) < 60
    assert "task_id" not in entry.options
    entry.options["task_id"] = "own"
    beats.schedulers[0].apply_async(entry)
    assert beats.sent[1] == "own"


def test_celery_loads_the_scheduler(tmp_path: Path) -> None:
    """By the name that the guide shows."""
    app = Celery("beats", broker="memory://", set_as_current=False)
    app.conf.beat_scheduler = "onceonly.integrations.celery:ExactlyOnceScheduler"
    beat = app.Beat(schedule=str(tmp_path / "schedule"))
    service = beat.Service(app=app, scheduler_cls=beat.scheduler_cls, schedule_filename=str(tmp_path / "schedule"))
    assert isinstance(service.scheduler, ExactlyOnceScheduler)
    service.sync()
