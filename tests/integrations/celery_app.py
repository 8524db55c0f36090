"""An application of Celery whose tasks take effect once, next to the same tasks without it. Tests run it with real workers.

The environment says where its database, its broker and its result backend are.
"""

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

from celery import Celery, chain, chord, group
from celery.backends.redis import RedisBackend
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from onceonly import Endpoint
from onceonly.integrations.celery import ExactlyOnceTask, TaskTransaction
from tests.integrations.celery_models import Line, engine_of

STORE = os.environ.get("CELERY_TEST_STORE", "sqlite:///celery-test.db")
PREFIX = os.environ.get("CELERY_TEST_PREFIX", "celery-test")
"""Begins the names of all queues."""


sessions = sessionmaker(engine_of(STORE))
shop = Endpoint(
    "shop",
    store=STORE,
    transport=os.environ.get("CELERY_TEST_TRANSPORT"),
    relay_after=float(os.environ.get("CELERY_TEST_RELAY_AFTER", "1")),
)
app = Celery(
    f"{PREFIX}-app",
    broker=os.environ.get("CELERY_TEST_BROKER", "memory://"),
    backend=os.environ.get("CELERY_TEST_BACKEND"),
    task_cls=ExactlyOnceTask.of(shop, sessions, wait=1.0, retry_delay=0.1, max_commit=timedelta(seconds=20)),
)
app.conf.update(
    task_default_queue=f"{PREFIX}-tasks",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    worker_enable_remote_control="CELERY_TEST_CONTROL" in os.environ,
    control_exchange=PREFIX,
    event_exchange=f"{PREFIX}-events",
    task_send_sent_event="CELERY_TEST_EVENTS" in os.environ,
)
prefix = {"global_keyprefix": f"{PREFIX}:"}
app.conf.result_backend_transport_options = prefix
if os.environ.get("CELERY_TEST_BROKER", "").startswith("redis"):
    seconds = int(os.environ.get("CELERY_TEST_VISIBILITY", "3600"))
    app.conf.broker_transport_options = {"visibility_timeout": seconds, **prefix}
    if "CELERY_TEST_VISIBILITY" in os.environ:  # look for messages to deliver again each second, not each 100 seconds
        app.conf.broker_transport_options |= {"unacked_restore_interval": 1, "unacked_restore_throttle": 1}


def add(session: Session, task: str, item: str) -> None:
    """Add a row."""
    session.add(Line(task=task, item=item))


def die_once(name: str) -> None:
    """Kill this process the first time it is called with this name."""
    place = Path(os.environ.get("CELERY_TEST_PLACE", ".")) / f"died-{name}"
    try:
        place.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)


def stay_once(name: str) -> None:
    """Say that this place was reached, and stay there, the first time it is called with this name."""
    place = Path(os.environ.get("CELERY_TEST_PLACE", ".")) / f"stays-{name}"
    with suppress(FileExistsError):
        place.touch(exist_ok=False)
        sleep(60)


@event.listens_for(sessions.class_, "after_commit")
def die_after_commit(session: Session) -> None:
    """Kill this process after the first commit of an item that asks for it, before anything is sent or acknowledged."""
    if (item := session.info.pop("item", "")).startswith("after"):
        die_once(item)
    elif item.startswith("committed"):
        stay_once(item)


def dying_at_chords(point: str) -> None:
    """Kill a process of a chord, once: before it counts its part, or before or after it sends the body that it has claimed."""
    send, count = app.amqp._retry_publish, RedisBackend.on_chord_part_return
    app.conf.update(broker_connection_timeout=1, task_publish_retry=False)  # the claim expires after six seconds

    def counting(self: Any, *args: Any, **options: Any) -> Any:
        if point == "uncounted":
            die_once("chord-uncounted")
        return count(self, *args, **options)

    def sending(publish: Any, *args: Any, **options: Any) -> Any:
        if point == "before":
            die_once("chord-before")
        sent = send(publish, *args, **options)
        if point == "after":
            die_once("chord-after")
        return sent

    app.amqp._retry_publish, RedisBackend.on_chord_part_return = sending, counting


if "CELERY_TEST_CHORD" in os.environ:
    dying_at_chords(os.environ["CELERY_TEST_CHORD"])


@app.task
def place(item: str, session: Session) -> str:
    """Write a row, and send a task. Die or stay at the end of the first run, or after its commit, if the item says so."""
    add(session, "place", item)
    note.delay(item)
    if item.startswith("uncommitted"):
        session.flush()
        stay_once(item)
    if item.startswith("before"):
        session.flush()
        die_once(item)
    session.info["item"] = item
    return f"placed {item}"


@app.task
def note(item: str, session: Session) -> str:
    """Write a row."""
    add(session, "note", item)
    return f"noted {item}"


@app.task(key=lambda item, **_: item)
def keyed(item: str, session: Session) -> str:
    """Write a row for this item, whatever the id of the task is."""
    add(session, "keyed", item)
    note.delay(item)
    return f"keyed {item}"


@app.task
def joined(first: str, item: str, session: Session) -> str:
    """Take the value of the task before."""
    add(session, "joined", f"{first} {item}")
    return f"{first} {item}"


@app.task
def collected(parts: list[str], session: Session) -> list[str]:
    """Take the values of a group."""
    add(session, "collected", ",".join(sorted(parts)))
    return parts


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def fails_twice(self: Any, item: str, session: Session) -> int:
    """Retry two times."""
    add(session, "fails_twice", item)
    note.delay(item)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task(autoretry_for=(ZeroDivisionError,), retry_kwargs={"max_retries": 2, "countdown": 0})
def always_fails(item: str, session: Session) -> None:
    """Fail after a row was written."""
    add(session, "always_fails", item)
    note.delay(item)
    raise ZeroDivisionError(item)


@app.task
def waits(item: str, seconds: float, session: Session) -> str:
    """Hold the transaction."""
    add(session, "waits", item)
    session.flush()
    sleep(seconds)
    return item


@app.task
def sleeps(item: str, seconds: float, session: Session) -> None:
    """Have PostgreSQL work for some time."""
    add(session, "sleeps", item)
    session.execute(text("SELECT pg_sleep(:seconds)"), {"seconds": seconds})


class Plain(ExactlyOnceTask.__mro__[1]):  # type: ignore[misc]
    """Celery's own class."""


@app.task(base=Plain, acks_late=True, reject_on_worker_lost=True, bind=True)
def plain_and_die(self: Any, item: str) -> None:
    """Do the same without the class: the control run."""
    with sessions.begin() as session:
        add(session, "plain_and_die", item)
    plain_note.delay(item)
    die_once(f"plain-{self.request.id}")


@app.task(base=Plain, acks_late=True, reject_on_worker_lost=True)
def plain_place(item: str) -> str:
    """Do what `place` does, without the class."""
    with sessions.begin() as session:
        add(session, "plain_place", item)
    plain_note.delay(item)
    return f"placed {item}"


@app.task(base=Plain, acks_late=True, reject_on_worker_lost=True)
def plain_note(item: str) -> None:
    """Write a row."""
    with sessions.begin() as session:
        add(session, "plain_note", item)


@app.task
def sends_canvas(item: str, session: Session) -> None:
    """Send a chain, a group, a chord and a link."""
    add(session, "sends_canvas", item)
    chain(place.s(f"{item}-chain"), joined.s(f"{item}-next")).delay()
    group(note.s(f"{item}-g1"), note.s(f"{item}-g2")).delay()
    chord([note.s(f"{item}-c1"), note.s(f"{item}-c2")], collected.s()).delay()
    note.apply_async((f"{item}-linked",), link=joined.s(f"{item}-link"))


@app.task
def announces(item: str, tx: TaskTransaction) -> None:
    """Write a row, and publish an event to other services."""
    add(tx.sql, "announces", item)
    tx.publish({"item": item}, type="Announced")
    note.delay(item)


@app.task(bind=True)
def ticks(self: Any, session: Session) -> None:
    """Write the id of the tick."""
    add(session, "ticks", self.request.id)


app.conf.beat_scheduler = "onceonly.integrations.celery:ExactlyOnceScheduler"
app.conf.beat_schedule = {"tick": {"task": f"{__name__}.ticks", "schedule": 1.0}}


@app.task
def connections(session: Session) -> str:
    """Return the process, and the connection that its session has."""
    raw: Any = session.connection().connection.driver_connection
    return f"{os.getpid()} {raw.info.backend_pid}"
