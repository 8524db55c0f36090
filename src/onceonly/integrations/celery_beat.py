"""Schedulers of `celery beat` whose task ids are the scheduled instants, so that several beats have one effect."""

from copy import copy
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from celery.beat import PersistentScheduler
from celery.schedules import schedule as Interval  # noqa: N812 - a class with the name of a function

from onceonly.model.transaction import LONGEST_KEY

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduledOnce:
    """Makes the ids of scheduled tasks: combine it with a scheduler, as in `class Mine(ScheduledOnce, DatabaseScheduler)`.

    The id is the name of the entry and its scheduled instant. A task with the class `ExactlyOnceTask` takes effect once for
    each instant, however many beats send it. An interval counts from 1970, so that the ticks of all beats are the same: an
    entry of 30 seconds has the instants :00 and :30.
    """

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **options: Any) -> Any:  # noqa: FBT001, FBT002 - as Celery has it
        """Send the task of an entry. Celery calls it."""
        last_run_at = entry.last_run_at
        own: Any = self
        if advance:
            entry = own.reserve(entry)
        sent = copy(entry)
        task_id = tick_id(entry.name, instant_of(entry.schedule, last_run_at, own.schedule[entry.name].last_run_at))
        sent.options = {"task_id": task_id, **entry.options}
        inherited: Any = super()
        return inherited.apply_async(sent, producer=producer, advance=False, **options)


class ExactlyOnceScheduler(ScheduledOnce, PersistentScheduler):  # type: ignore[misc] # Celery has no types
    """Celery's own scheduler, with the instants as ids.

    Set `app.conf.beat_scheduler = "onceonly.integrations.celery:ExactlyOnceScheduler"`.
    """


def instant_of(schedule: Any, last_run_at: datetime, sent_at: datetime) -> datetime:
    """Return the instant for which a task is sent: that which was due first after its last run.

    An interval has no such instant that two beats agree on. It is that of the tick in which the task is sent.
    """
    if type(schedule) is Interval:
        since = _aware(schedule, sent_at) - _EPOCH
        every: timedelta = schedule.run_every
        return _EPOCH + (since // every) * every if every else _EPOCH + since
    due = _aware(schedule, schedule.now()) + schedule.remaining_estimate(last_run_at)
    return _EPOCH + timedelta(seconds=round((due - _EPOCH).total_seconds()))


def tick_id(name: str, instant: datetime) -> str:
    """Return the id of a scheduled task. A name that is too long is replaced by a hash."""
    when = instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
    found = f"{name}@{when}"
    if len(found.encode()) <= LONGEST_KEY:
        return found
    return f"{blake2b(name.encode(), digest_size=16).hexdigest()}@{when}"


def _aware(schedule: Any, moment: datetime) -> datetime:
    aware: datetime = schedule.maybe_make_aware(moment)
    return aware.astimezone(UTC)
