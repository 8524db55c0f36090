"""Tasks that take effect once: what is captured, what is refused, and what comes back. Traced as in a worker."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from kombu import Queue
from kombu.utils.imports import symbol_by_name
from opentelemetry.trace import SpanKind, get_current_span
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from onceonly import Endpoint, Off
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidEffect, InvalidKey, SetupError, TransactionMisused
from onceonly.formats.records import decode_record
from onceonly.integrations.celery import ExactlyOnceTask, TaskTransaction, apply_async, captured, delay, exactly_once
from onceonly.integrations.celery_carrier import _publish, _with_trace
from onceonly.integrations.celery_messages import read_stored
from onceonly.integrations.celery_worker import check_pool
from onceonly.integrations.sending_thread import Gathered, check_sessions_of, sending_of
from onceonly.integrations.session_transactions import RequestKey, RequestTransaction, SessionRequest
from onceonly.model.errors import KeyReused
from onceonly.model.identity import Identity
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.notifier import CommittedRecord
from tests import ROOT
from tests.integrations.celery_models import Base, Line, Unique
from tests.integrations.celery_place import Place, Tasks
from tests.telemetry.recording import Recording, id_of, parent_of, trace_of

ETA = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what is committed in the store."""
    monkeypatch.setattr("onceonly.integrations.sending_thread.SendingThread.start", lambda *_, **__: None)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Make a place with all tables."""
    found = Place(tmp_path)
    found.create_tables()
    yield found
    found.app.close()
    found.engine.dispose()


@pytest.fixture
def tasks(place: Place) -> Tasks:
    """Make the tasks."""
    return Tasks(place)


def test_rows_tasks_and_value_are_one_commit(place: Place, tasks: Tasks) -> None:
    """A known id returns the value of the first run, and does nothing."""
    assert [place.value(tasks.do, "a") for _ in range(3)] == ["done a"] * 3
    assert tasks.runs == place.lines() == ["a"]
    assert place.tasks() == [("note", ["a"])]
    assert place.value(tasks.do, "a", id="t2") == "done a"
    assert place.lines() == ["a", "a"]


def test_a_task_that_fails_leaves_nothing(place: Place, tasks: Tasks) -> None:
    """What it has sent goes with its rows, and a later run does the work."""
    fails = [True]

    @place.task
    def breaks(item: str, session: Session) -> str:
        session.add(Line(task="breaks", item=item))
        tasks.note.delay(item)
        if fails:
            raise ZeroDivisionError
        return "worked"

    assert isinstance(place.failure(breaks, "a"), ZeroDivisionError)
    assert place.lines() == place.tasks() == []
    fails.clear()
    assert place.value(breaks, "a") == "worked"
    assert place.lines() == ["a"]


def test_the_session_is_injected_by_its_annotation(place: Place) -> None:
    """Callers do not pass it, and their arguments are checked without it."""

    @place.task(bind=True)
    def both(self: Any, item: str, session: Session, tx: TaskTransaction, *, times: int = 1) -> str:
        assert tx.sql is session
        session.add(Line(task=self.request.id, item=item * times))
        return item

    assert place.value(both, "a", kwargs={"times": 2}) == "a"
    assert place.lines() == ["aa"]
    with pytest.raises(TypeError, match="item"):
        both.delay()
    with pytest.raises(TypeError, match="session"):
        both.delay("a", session=1)
    with place.sessions() as session:  # a function like any other, for its own tests
        assert both("b", session=session, tx=TaskTransaction(session, place.shop.enlist(session))) == "b"


def test_annotations_of_type_checkers_do_not_hide_the_others(place: Place) -> None:
    """And a session that the caller passes is used."""

    def inner(session: "Session", other: "Unknown" = None) -> Session:  # type: ignore[name-defined] # noqa: F821
        assert other is None
        return session

    def outer(session: "Session") -> bool:
        return task(session) is session and task() is session

    task = place.task(name="tests.inner")(inner)
    assert place.value(place.task(name="tests.outer")(outer))


def test_a_task_called_as_a_function_works_in_the_same_transaction(place: Place, tasks: Tasks) -> None:
    """It has the session of the task that calls it, and what it sends is committed with it."""

    @place.task
    def outer(session: Session) -> str:
        session.add(Line(task="outer", item="outer"))
        return str(tasks.do("inner"))

    assert place.value(outer) == "done inner"
    assert sorted(place.lines()) == ["inner", "outer"]
    assert place.tasks() == [("note", ["inner"])]


def test_the_options_of_a_call_are_kept(place: Place, tasks: Tasks) -> None:
    """Countdown, eta, expires, queue, priority, headers, link and link_error are in the stored message."""
    eta = ETA

    def send() -> None:
        tasks.note.apply_async(
            ("a",), countdown=60, expires=3600, queue="other", priority=7, headers={"tenant": "x"}, link=tasks.note.s(),
            link_error=tasks.note.si("failed"), ignore_result=True, shadow="shadow", time_limit=9, soft_time_limit=8,
        )  # fmt: skip
        tasks.note.apply_async(("b",), eta=eta, expires=eta + timedelta(hours=1), serializer="json", compression="zlib")

    place.value(tasks.sending(place, send))
    first, second = place.stored()
    assert (first.routing_key, first.exchange, first.priority) == ("other", "", 7)
    assert [each.name for each in first.entities] == ["other"]
    headers = first.headers
    assert headers["tenant"] == "x"
    assert (headers["timelimit"], headers["shadow"], headers["ignore_result"]) == ([9, 8], "shadow", True)
    due = datetime.fromisoformat(headers["eta"])
    assert 50_000 < due.timestamp() * 1000 - LIVE.clock.now() <= 60_000
    assert int(first.properties["expiration"]) == 3_600_000
    embedded = json.loads(first.text)[2]
    assert [each["task"] for each in embedded["callbacks"] + embedded["errbacks"]] == ["tests.note", "tests.note"]
    assert datetime.fromisoformat(second.headers["eta"]) == eta
    assert second.headers["compression"] == "application/x-gzip"
    assert second.body != b""
    assert not second.text
    assert first.headers["root_id"] == first.headers["parent_id"] == "t1"


def test_what_is_sent_is_what_celery_would_have_sent(place: Place, tasks: Tasks) -> None:
    """The stored message is compared with the one that is published outside of a transaction."""
    queue = place.app.amqp.queues[place.name]
    tasks.note.apply_async(("a",), task_id="n1", priority=3, headers={"tenant": "x"}, link=tasks.note.s())
    place.value(
        tasks.sending(
            place,
            lambda: tasks.note.apply_async(("a",), task_id="n1", priority=3, headers={"tenant": "x"}, link=tasks.note.s()),
        )
    )
    (stored,) = place.stored()
    with place.app.connection_for_write() as connection:
        plain = queue(connection.channel()).get(no_ack=True)
        _publish(connection.Producer(), stored, mandatory=False)
        ours = queue(connection.channel()).get(no_ack=True)
    assert ours.body == plain.body
    assert ours.content_type, ours.content_encoding == (plain.content_type, plain.content_encoding)
    other = {"root_id", "parent_id"}
    assert {key: value for key, value in ours.headers.items() if key not in other} == {
        key: value for key, value in plain.headers.items() if key not in other
    }
    assert {key: value for key, value in ours.properties.items() if key != "delivery_tag"} == {
        key: value for key, value in plain.properties.items() if key != "delivery_tag"
    }


def test_ids_are_the_same_in_each_run(place: Place, tasks: Tasks) -> None:
    """A run that is rolled back has announced the ids that the next one commits."""
    seen: list[list[str]] = []
    fails = [True]

    def send() -> None:
        seen.append([tasks.note.delay("a").id, tasks.note.delay("b").id])
        if fails:
            raise ZeroDivisionError

    task = tasks.sending(place, send)
    place.failure(task)
    fails.clear()
    place.value(task)
    assert seen[0] == seen[1] == [each.headers["id"] for each in place.stored()]
    place.value(task, id="t2")
    assert not set(seen[2]) & set(seen[0])


def test_a_key_of_the_arguments(place: Place, tasks: Tasks) -> None:
    """Two ids with one key are one piece of work, and the same key for other arguments is refused."""

    @place.task(key=lambda item, **_: item)
    def keyed(item: str, amount: int, session: Session) -> int:
        session.add(Line(task="keyed", item=item))
        tasks.note.delay(item)
        return amount

    assert place.value(keyed, "a", 1, id="t1") == place.value(keyed, "a", 1, id="t2") == 1
    assert place.lines() == ["a"]
    assert len(place.tasks()) == 1
    assert isinstance(place.failure(keyed, "a", 2, id="t3"), KeyReused)
    assert place.value(keyed, "b", 1, id="t4") == 1
    assert place.value(tasks.note, "x", id="a") == "noted x"  # an id of another task is another key


@pytest.mark.parametrize("key", ["", " ", "x" * 256, 1, None])
def test_a_key_that_is_none_is_refused(place: Place, key: Any) -> None:
    """Nothing is committed."""

    @place.task(key=lambda: key)
    def keyed(session: Session) -> None:
        session.add(Line(task="keyed", item="a"))

    assert isinstance(place.failure(keyed), InvalidKey | InvalidEffect)
    assert place.lines() == []


def test_a_decorator_for_one_task(place: Place) -> None:
    """Other tasks of its application stay as they are."""
    app = Celery(f"{place.name}-plain", broker="memory://", backend="cache+memory://", set_as_current=False)

    @exactly_once(app, place.shop, place.sessions, key=lambda item: item, max_retries=9, shared=False)
    def once(item: str, session: Session) -> str:
        session.add(Line(task="once", item=item))
        return item

    @app.task(shared=False)
    def plain(item: str) -> str:
        return item

    app.finalize()
    assert (once.max_retries, once.acks_late, once.reject_on_worker_lost) == (9, True, True)
    assert not isinstance(plain, ExactlyOnceTask)
    assert [place.value(once, "a", id=id_) for id_ in ("t1", "t2")] == ["a", "a"]
    assert place.lines() == ["a"]


def test_a_chain_goes_on_once(place: Place, tasks: Tasks) -> None:
    """The next task of a chain is committed with the task before it, and has the id that the chain gave it."""
    sent = tasks.sending(place, lambda: chain(tasks.do.s("a"), tasks.note.s(), tasks.note.s()).delay())
    place.value(sent)
    (first,) = place.stored()
    args, kwargs, embedded = json.loads(first.text)
    assert [each["task"] for each in embedded["chain"]] == ["tests.note", "tests.note"]
    wanted = embedded["chain"][-1]["options"]["task_id"]
    for _ in range(2):
        place.value(tasks.do, *args, id=first.headers["id"], kwargs=kwargs, **embedded)
    follow = [each for each in place.stored() if each.headers["id"] == wanted]
    assert len(follow) == 1
    assert json.loads(follow[0].text)[0] == ["done a"]
    assert len(json.loads(follow[0].text)[2]["chain"]) == 1
    assert place.tasks().count(("note", ["a"])) == 1


def test_callbacks_are_committed_with_the_task(place: Place, tasks: Tasks) -> None:
    """Several links, of which one is a group."""
    links = [tasks.note.s(), tasks.note.si("fixed"), group(tasks.note.si("g1"), tasks.note.si("g2"))]
    for _ in range(2):
        place.value(tasks.do, "a", callbacks=[json.loads(json.dumps(each)) for each in links])
    assert sorted(place.tasks()) == sorted(
        [("note", ["a"]), ("note", ["done a"]), ("note", ["fixed"]), ("note", ["g1"]), ("note", ["g2"])]
    )


def test_a_group_is_captured(place: Place, tasks: Tasks) -> None:
    """All parts are committed together."""
    place.value(tasks.sending(place, lambda: group(tasks.note.s(each) for each in "ab").delay()))
    assert place.tasks() == [("note", ["a"]), ("note", ["b"])]


def test_map_starmap_and_chunks_are_one_transaction_for_each_message(place: Place, tasks: Tasks) -> None:
    """Celery's own tasks call the function for each item. All of it has an effect once."""
    sent = tasks.sending(
        place,
        lambda: [
            tasks.do.map(["a", "b"]).delay(),
            tasks.do.starmap([("c",), ("d",)]).delay(),
            tasks.do.chunks([("e",), ("f",), ("g",)], 2).apply_async(),
        ],
    )
    place.value(sent)
    stored = {each.headers["id"]: each for each in place.stored()}
    assert sorted(str(each.headers["task"]) for each in stored.values()) == ["celery.map", *["celery.starmap"] * 3]
    for _ in range(2):
        for id_, each in stored.items():
            _, kwargs, _ = json.loads(each.text)
            place.value(place.app.tasks[each.headers["task"]], id=id_, kwargs=kwargs)
    assert sorted(place.lines()) == [*"abcdefg", "sends"]
    assert sorted(args[0] for name, args in place.tasks() if name == "note") == list("abcdefg")


def test_a_group_before_a_task_is_a_chord(tmp_path: Path) -> None:
    """In a chain. The body is part of the message of each part."""
    place = Place(tmp_path)
    place.create_tables()
    (tmp_path / "results").mkdir()
    place.app.conf.result_backend = f"file://{tmp_path}/results"
    tasks = Tasks(place)
    place.value(tasks.sending(place, lambda: chain(group(tasks.note.s("a"), tasks.note.s("b")), tasks.total.s()).delay()))
    assert sorted(str(each.headers["task"]) for each in place.stored()) == ["celery.chord_unlock", "tests.note", "tests.note"]


@pytest.mark.parametrize(("serializer", "compression"), [("pickle", None), ("yaml", "bzip2"), ("json", "gzip")])
def test_the_serializer_and_the_compression_of_the_application_are_kept(
    place: Place, tasks: Tasks, serializer: str, compression: str | None
) -> None:
    """A worker reads what was stored."""
    accepted = ["json", serializer]
    place.app.conf.update(task_serializer=serializer, task_compression=compression, accept_content=accepted)
    assert [place.value(tasks.do, "ä ✓") for _ in range(2)] == ["done ä ✓"] * 2
    (stored,) = place.stored()
    with place.app.connection_for_write() as connection:
        _publish(connection.Producer(), stored, mandatory=False)
        message = place.app.amqp.queues[place.name](connection.channel()).get(no_ack=True, accept=accepted)
    names = {"json": "application/json", "pickle": "application/x-python-serialize", "yaml": "application/x-yaml"}
    assert message.content_type == names[serializer]
    assert bool(message.headers.get("compression")) == (compression is not None)
    assert message.payload[0] in (["ä ✓"], ("ä ✓",))
    request = symbol_by_name(tasks.note.Request)(message, app=place.app, task=tasks.note)
    assert request.execute() == "noted ä ✓"


def test_a_chord_whose_parts_are_polled(tmp_path: Path) -> None:
    """Celery's task that waits for them is stored with them. It retries until all are there, and starts the body once."""
    place = Place(tmp_path)
    place.create_tables()
    (tmp_path / "results").mkdir()
    place.app.conf.result_backend = f"file://{tmp_path}/results"
    tasks = Tasks(place)
    place.value(tasks.sending(place, lambda: chord([tasks.note.s("a"), tasks.note.s("b")], tasks.total.s()).delay()))
    unlock, first, second = sorted(place.stored(), key=lambda each: (str(each.headers["task"]), each.text))
    assert unlock.headers["task"] == "celery.chord_unlock"
    args, kwargs, _ = json.loads(unlock.text)
    unlocking = place.app.tasks["celery.chord_unlock"]
    again = {"id": unlock.headers["id"], "kwargs": kwargs}
    place.value(tasks.note, "a", id=first.headers["id"])
    assert place.run(unlocking, *args, **again).info.state == "RETRY"
    place.value(tasks.note, "b", id=second.headers["id"])
    for _ in range(2):
        place.value(unlocking, *args, **again, retries=1)
    bodies = [each for each in place.stored() if each.headers["task"] == "tests.total"]
    assert [json.loads(each.text)[0] for each in bodies] == [[["noted a", "noted b"]]]


def test_a_chord_without_a_result_backend_is_refused(tmp_path: Path) -> None:
    """Nothing of it is committed."""
    place = Place(tmp_path)
    place.create_tables()
    place.app.conf.result_backend = None
    tasks = Tasks(place)
    sent = tasks.sending(place, lambda: chord([tasks.note.s("a"), tasks.note.s("b")], tasks.total.s()).delay())
    failure = place.failure(sent)
    assert isinstance(failure, NotImplementedError | SetupError)
    assert "result backend" in str(failure)
    assert place.lines() == place.tasks() == []


def test_a_retry_is_stored_when_the_work_is_undone(place: Place, tasks: Tasks) -> None:
    """It keeps its id, and a copy that has succeeded makes it known."""

    @place.task(bind=True, max_retries=1)
    def retries(self: Any, item: str, session: Session) -> int:
        session.add(Line(task="retries", item=item))
        tasks.note.delay(item)
        if not self.request.retries:
            raise self.retry(countdown=5)
        return int(self.request.retries)

    outcome = place.run(retries, "a")
    assert outcome.info.state == "RETRY"
    assert isinstance(outcome.info.retval, Retry)
    assert place.lines() == []
    (stored,) = place.stored()
    assert (stored.headers["id"], stored.headers["retries"]) == ("t1", 1)
    assert stored.headers["eta"]
    assert [place.value(retries, "a", retries=1) for _ in range(2)] == [1, 1]
    assert place.lines() == ["a"]


def test_autoretry_covers_what_the_database_refuses(place: Place) -> None:
    """The flush is part of the task."""

    @place.task(autoretry_for=(IntegrityError,), retry_kwargs={"max_retries": 1, "countdown": 1})
    def inserts(item: str, session: Session) -> None:
        session.add(Unique(item=item))

    place.value(inserts, "a", id="t1")
    assert place.run(inserts, "a", id="t2").info.state == "RETRY"
    assert isinstance(place.failure(inserts, "a", id="t2", retries=1), IntegrityError)


def test_a_retry_that_the_task_catches_is_not_sent(place: Place) -> None:
    """The task has succeeded, so its retry would be known."""

    @place.task(bind=True)
    def catches(self: Any, session: Session) -> str:
        session.add(Line(task="catches", item="a"))
        with suppress(Retry):
            self.retry(countdown=1)
        return "went on"

    assert place.value(catches) == "went on"
    assert (place.lines(), place.tasks()) == (["a"], [])


def test_retry_without_throwing_is_refused(place: Place) -> None:
    """The work would be committed, so the retry would be known."""

    @place.task(bind=True)
    def retries(self: Any, session: Session) -> None:
        session.add(Line(task="retries", item="a"))
        self.retry(throw=False)

    assert isinstance(place.failure(retries), TransactionMisused)
    assert place.lines() == place.tasks() == []


@pytest.mark.parametrize(("error", "state"), [(Reject("no", requeue=False), "REJECTED"), (Ignore("no"), "IGNORED")])
def test_reject_and_ignore_undo_the_task(place: Place, tasks: Tasks, error: Exception, state: str) -> None:
    """As every other exception."""

    @place.task
    def refuses(session: Session) -> None:
        session.add(Line(task="refuses", item="a"))
        tasks.note.delay("a")
        raise error

    assert place.run(refuses).info.state == state
    assert place.lines() == place.tasks() == []


def test_a_task_that_replaces_itself(place: Place, tasks: Tasks) -> None:
    """The replacement has its id, and is committed with its rows. A copy of the first task does nothing."""

    @place.task(bind=True)
    def replaces(self: Any, item: str, session: Session) -> None:
        session.add(Line(task="replaces", item=item))
        raise self.replace(tasks.do.s(item))

    assert [place.run(replaces, "a").info.state for _ in range(2)] == ["IGNORED"] * 2
    assert place.lines() == ["a"]
    (stored,) = place.stored()
    assert (stored.headers["id"], stored.headers["task"]) == ("t1", "tests.do")
    assert place.value(tasks.do, "a", replaced_task_nesting=1) == "done a"
    assert place.lines() == ["a", "a"]


class Refused:
    """What cannot be part of a transaction: nothing of the task is committed, and nothing is sent."""

    @staticmethod
    def unserializable(_place: Place, tasks: Tasks) -> None:
        tasks.note.delay(object())

    @staticmethod
    def long_id(_place: Place, tasks: Tasks) -> None:
        tasks.note.apply_async(("a",), task_id="x" * 256)

    @staticmethod
    def blank_id(_place: Place, tasks: Tasks) -> None:
        tasks.note.apply_async(("a",), task_id=" ")

    @staticmethod
    def wrong_arguments(_place: Place, tasks: Tasks) -> None:
        tasks.note.delay()

    @staticmethod
    def waiting(_place: Place, tasks: Tasks) -> None:
        tasks.note.delay("a").get(disable_sync_subtasks=False)

    @staticmethod
    def applying(_place: Place, tasks: Tasks) -> None:
        tasks.note.apply(("a",), throw=True)

    @staticmethod
    def own_producer(place: Place, tasks: Tasks) -> None:
        with place.app.connection_for_write() as connection:
            tasks.note.apply_async(("a",), producer=connection.Producer())

    @staticmethod
    def own_connection(place: Place, tasks: Tasks) -> None:
        with place.app.connection_for_write() as connection:
            tasks.note.apply_async(("a",), connection=connection)

    @staticmethod
    def send_task_with_a_connection(place: Place, _tasks: Tasks) -> None:
        with place.app.connection_for_write() as connection:
            place.app.send_task("tests.note", ("a",), connection=connection)

    @staticmethod
    def other_application(_place: Place, _tasks: Tasks) -> None:
        OTHER.send_task("tests.note", ("a",))

    @staticmethod
    def strange_header(_place: Place, tasks: Tasks) -> None:
        tasks.note.apply_async(("a",), headers={"at": ETA})

    @staticmethod
    def commit(_place: Place, _tasks: Tasks) -> None:
        _SESSIONS[-1].commit()

    @staticmethod
    def rollback(_place: Place, _tasks: Tasks) -> None:
        _SESSIONS[-1].rollback()

    @staticmethod
    def long_chord(_place: Place, tasks: Tasks) -> None:
        chord([tasks.note.s("a"), tasks.note.s("b")], tasks.total.s()).delay()


OTHER = Celery("other", broker="memory://other", set_as_current=False)
_SESSIONS: list[Session] = []
REFUSED = [name for name in vars(Refused) if not name.startswith("_")]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_is_refused(place: Place, tasks: Tasks, what: str) -> None:
    """The error is clear, nothing is committed, and no message is sent."""

    @place.task
    def outer(session: Session) -> None:
        _SESSIONS.append(session)
        session.add(Line(task="outer", item="a"))
        getattr(Refused, what)(place, tasks)

    failure = place.failure(outer)
    assert isinstance(failure, InvalidEffect | TransactionMisused | SetupError | TypeError | NotImplementedError), repr(failure)
    assert str(failure)
    assert place.lines() == place.tasks() == []
    with place.app.connection_for_write() as connection:
        waiting = Queue(place.name)(connection.channel())
        waiting.declare()
        assert waiting.get(no_ack=True) is None


def test_a_value_that_cannot_be_stored_is_refused_before_the_commit(place: Place) -> None:
    """Celery would store the failure of a task whose rows are committed."""

    @place.task
    def returns(session: Session) -> object:
        session.add(Line(task="returns", item="a"))
        return object()

    assert isinstance(place.failure(returns), InvalidEffect)
    assert place.lines() == []

    @place.task(ignore_result=True)
    def ignored(session: Session) -> object:
        session.add(Line(task="returns", item="a"))
        return object()

    assert place.value(ignored) is not None
    assert place.value(ignored) is None
    assert place.lines() == ["a"]


def test_a_lost_race_has_the_task_delivered_again(place: Place, tasks: Tasks) -> None:
    """It is rejected to its queue, and its retries do not count it."""
    with place.sessions() as session:
        session.execute(text("INSERT INTO lines (task, item) VALUES ('x', 'x')"))  # holds the lock of the file
        outcome = place.run(tasks.do, "a")
    assert outcome.info.state == "REJECTED"
    assert isinstance(outcome.info.retval, Reject)
    assert outcome.info.retval.requeue
    assert place.lines() == []
    assert place.value(tasks.do, "a") == "done a"


def test_a_database_that_is_away_has_the_task_delivered_again(place: Place, tasks: Tasks, tmp_path: Path) -> None:
    """Its failure is not that of the task."""
    (tmp_path / "shop.db").rename(tmp_path / "away")
    (tmp_path / "shop.db").mkdir()
    place.engine.dispose()
    assert place.run(tasks.do, "a").info.state == "REJECTED"
    (tmp_path / "shop.db").rmdir()
    (tmp_path / "away").rename(tmp_path / "shop.db")
    assert place.value(tasks.do, "a") == "done a"


def test_an_endpoint_without_tables_is_refused(tmp_path: Path) -> None:
    """The error names the command that creates them."""
    place = Place(tmp_path)
    Base.metadata.create_all(place.engine)
    tasks = Tasks(place)
    failure = place.failure(tasks.do, "a")
    assert isinstance(failure, SetupError)
    assert "onceonly schema create" in str(failure)
    assert place.lines() == []


def test_settings_that_acknowledge_early_are_refused(place: Place) -> None:
    """By arguments and by annotations."""
    place.app.conf.task_annotations = {"tests.annotated": {"acks_late": False}}
    for name, options in (
        ("tests.early", {"acks_late": False}),
        ("tests.lost", {"reject_on_worker_lost": False}),
        ("tests.annotated", {}),
    ):
        task = place.task(name=name, **options)(nothing)
        with pytest.raises(SetupError, match="acknowledged after its commit"):
            _ = task.name
        place.app._pending.clear()


def test_celerys_own_deduplication_is_refused(place: Place) -> None:
    """It sends callbacks again."""
    place.app.conf.worker_deduplicate_successful_tasks = True
    with pytest.raises(SetupError, match="worker_deduplicate_successful_tasks"):
        _ = place.task(name="tests.nothing")(nothing).name


def nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize("sessions", [None, "sqlite://", 1])
def test_sessions_that_give_none_are_refused(place: Place, sessions: Any) -> None:
    """At the definition of the application."""
    with pytest.raises(SetupError, match="sessions="):
        ExactlyOnceTask.of(place.shop, sessions)


def test_a_coroutine_is_refused(place: Place) -> None:
    """Its transaction is a synchronous session."""

    async def task(session: Session) -> None: ...

    with pytest.raises(SetupError, match="plain `def`"):
        _ = place.task(name="tests.async")(task).name


def test_a_view_commits_its_row_and_its_task_together(place: Place, tasks: Tasks) -> None:
    """A rollback drops both."""
    place.app.finalize()
    for item in ("kept", "dropped"):
        with place.sessions() as session:
            session.add(Line(task="view", item=item))
            result = delay(place.shop.enlist(session), tasks.note, item)
            apply_async(place.shop.enlist(session), tasks.note, (item,), countdown=9, task_id=f"own-{item}")
            with captured(place.shop.enlist(session)):
                chain(tasks.do.s(item), tasks.note.s()).delay()
            with pytest.raises(InvalidEffect):
                delay(place.shop.enlist(session), tasks.note, object())
            if item == "kept":
                session.commit()
    assert place.lines() == ["kept"]
    assert sorted(place.tasks()) == [("do", ["kept"]), ("note", ["kept"]), ("note", ["kept"])]
    assert result.id


def test_a_request_commits_its_tasks_with_its_own_transaction(place: Place, tasks: Tasks) -> None:
    """The transaction that a route receives is accepted as well: a rollback drops its tasks, too."""
    place.app.finalize()
    for item in ("kept", "dropped"):
        with place.sessions() as session:
            request = SessionRequest(place.shop, session, None)
            tx = request.open(RequestKey(item, None, None, None))
            assert isinstance(tx, RequestTransaction)
            with request.work():
                tx.sql.add(Line(task="route", item=item))
                result = delay(tx, tasks.note, item)
                apply_async(tx, tasks.note, (item,), countdown=9)
                with captured(tx):
                    chain(tasks.do.s(item), tasks.note.s()).delay()
            if item == "kept":
                request.commit(b"")
                kept = result.id
    assert place.lines() == ["kept"]
    assert sorted(place.tasks()) == [("do", ["kept"]), ("note", ["kept"]), ("note", ["kept"])]
    assert kept in {each.headers["id"] for each in place.stored()}


def test_a_task_that_sends_in_its_transaction_by_name_has_the_same_ids(place: Place, tasks: Tasks) -> None:
    """As with the task's own `delay`: each run announces the ids that the last one commits."""
    seen: list[str] = []

    @place.task
    def sends(tx: TaskTransaction) -> None:
        tx.sql.add(Line(task="sends", item="a"))
        seen.append(delay(tx, tasks.note, "a").id)
        if len(seen) < 2:
            raise ZeroDivisionError

    place.failure(sends)
    place.value(sends)
    assert seen[0] == seen[1] == place.stored()[0].headers["id"]


async def test_an_asynchronous_transaction_commits_its_tasks(place: Place, tasks: Tasks) -> None:
    """That of `shop.transaction()`, which sends what it has committed by itself. With a key, a repeated one sends nothing."""
    place.app.finalize()
    for _ in range(2):
        async with place.shop.transaction(idempotency_key="a") as tx:
            if not tx.is_known:
                delay(tx, tasks.note, "a")
    with suppress(ZeroDivisionError):
        async with place.shop.transaction() as tx:
            delay(tx, tasks.note, "dropped")
            raise ZeroDivisionError
    with place.app.connection_for_write() as connection:
        queue = place.app.amqp.queues[place.name](connection.channel())
        received = [queue.get(no_ack=True) for _ in range(2)]
    assert json.loads(received[0].body)[0] == ["a"]
    assert received[1] is None


def test_a_broker_that_celery_does_not_have_is_refused(place: Place, tasks: Tasks) -> None:
    """Before the commit: the message could never be sent."""
    place.app.conf.broker_url = "nats://127.0.0.1"
    with place.sessions.begin() as session, pytest.raises(SetupError, match="not that of a broker of Celery"):
        delay(place.shop.enlist(session), tasks.note, "a")
    assert isinstance(place.failure(tasks.do, "a"), SetupError)
    assert place.lines() == place.tasks() == []


def test_what_has_no_transaction_is_refused(place: Place, tasks: Tasks) -> None:
    """A session alone is refused, and so is a transaction that is over."""
    with place.sessions() as session, pytest.raises(SetupError, match="enlist"):
        delay(session, tasks.note, "a")  # type: ignore[arg-type]
    with place.sessions.begin() as session:
        tx = TaskTransaction(session, place.shop.enlist(session))
    with pytest.raises(InvalidEffect, match="has ended"):
        delay(tx, tasks.note, "a")


def test_outside_of_a_transaction_celery_sends_at_once(place: Place, tasks: Tasks) -> None:
    """Nothing else changes for code that has no transaction."""
    result = tasks.note.delay("a")
    with place.app.connection_for_write() as connection:
        found = place.app.amqp.queues[place.name](connection.channel()).get(no_ack=True)
    assert found.headers["id"] == result.id
    with pytest.raises(InvalidEffect, match="255"):
        tasks.note.apply_async(("a",), task_id="x" * 300)


def test_eager_tasks_run_after_the_commit(place: Place, tasks: Tasks) -> None:
    """As a worker would run them, in the tests of an application."""
    place.app.conf.task_always_eager = True
    place.app.conf.task_store_eager_result = False
    assert tasks.do.delay("a").get() == "done a"
    assert place.lines() == ["a", "a"]
    assert place.tasks() == []


def test_an_event_goes_with_the_task(place: Place) -> None:
    """To the endpoint's own transport."""

    @place.task
    def publishes(tx: TaskTransaction) -> None:
        tx.sql.add(Line(task="publishes", item="a"))
        tx.publish({"order": 1}, type="OrderPlaced")

    place.value(publishes)
    with place.engine.connect() as connection:
        assert b"OrderPlaced" in connection.execute(text("SELECT effects FROM onceonly_records")).scalar_one()


def test_an_endpoint_that_keeps_no_records_is_refused(tmp_path: Path) -> None:
    """A crash would lose the follow-up tasks."""
    place = Place(tmp_path)
    place.create_tables()
    shop = Endpoint("celery-shop", store=place.store, deduplication=Off())
    place.app.task_cls = ExactlyOnceTask.of(shop, place.sessions)
    tasks = Tasks(place)
    assert isinstance(place.failure(tasks.do, "a"), SetupError)
    assert place.lines() == []


def test_messages_are_in_the_trace_of_the_task(tmp_path: Path) -> None:
    """A span for each message that is stored, whose context goes to the broker."""
    recording = Recording()
    place = Place(tmp_path)
    place.create_tables()
    shop = Endpoint("celery-shop", store=place.store, telemetry=recording.telemetry)
    place.app.task_cls = ExactlyOnceTask.of(shop, place.sessions)
    tasks = Tasks(place)
    with recording.tracers.get_tracer("test").start_as_current_span("celery runs a task") as span:
        place.value(tasks.do, "a")
    trace = f"{span.get_span_context().trace_id:032x}"
    with place.engine.connect() as connection:
        effects = connection.execute(text("SELECT effects FROM onceonly_records")).scalar_one()
    (send,) = decode_record(Identity("shop", "x"), effects).effects
    assert send.message.extension("traceparent").split("-")[1] == trace
    (created,) = [each for each in recording.spans.get_finished_spans() if each.kind is SpanKind.PRODUCER]
    assert send.message.extension("traceparent").split("-")[2] == f"{created.context.span_id:016x}"
    assert _with_trace(read_stored(send.message.body), send).headers["traceparent"].split("-")[1] == trace


PARENT = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "vendor=1"}


def received(place: Place, task: Any, *args: Any, headers: dict[str, str]) -> Any:
    """Send a task as an instrumented client does, and return the request that a worker makes of it."""
    task.apply_async(args, task_id=str(uuid4()), headers=headers)
    with place.app.connection_for_write() as connection:
        message = place.app.amqp.queues[place.name](connection.channel()).get(no_ack=True)
    return symbol_by_name(task.Request)(message, app=place.app, task=task)


def test_the_caller_of_a_task_is_the_parent_of_its_spans(tmp_path: Path) -> None:
    """An instrumentation has put its context into the message. What the task sends has the context of our span."""
    recording = Recording()
    place = Place(tmp_path)
    place.create_tables()
    shop = Endpoint("celery-shop", store=place.store, telemetry=recording.telemetry)
    place.app.task_cls = ExactlyOnceTask.of(shop, place.sessions)
    tasks = Tasks(place)
    place.app.finalize()
    assert received(place, tasks.do, "a", headers=PARENT).execute() == "done a"
    (created,) = [each for each in recording.spans.get_finished_spans() if each.kind is SpanKind.PRODUCER]
    assert (f"{trace_of(created):032x}", f"{parent_of(created):016x}") == ("a" * 32, "b" * 16)
    with place.engine.connect() as connection:
        effects = connection.execute(text("SELECT effects FROM onceonly_records")).scalar_one()
    (send,) = decode_record(Identity("shop", "x"), effects).effects
    sent = _with_trace(read_stored(send.message.body), send).headers
    assert sent["traceparent"] == f"00-{'a' * 32}-{id_of(created):016x}-01"
    assert sent["tracestate"] == PARENT["tracestate"]
    assert not get_current_span().get_span_context().is_valid


def test_the_span_of_the_workers_own_instrumentation_comes_first(tmp_path: Path) -> None:
    """It is a child of the caller's already."""
    recording = Recording()
    place = Place(tmp_path)
    place.create_tables()
    shop = Endpoint("celery-shop", store=place.store, telemetry=recording.telemetry)
    place.app.task_cls = ExactlyOnceTask.of(shop, place.sessions)
    tasks = Tasks(place)
    place.app.finalize()
    request = received(place, tasks.do, "a", headers=PARENT)
    with recording.tracers.get_tracer("test").start_as_current_span("celery runs a task") as span:
        assert request.execute() == "done a"
    (created,) = [each for each in recording.spans.get_finished_spans() if each.kind is SpanKind.PRODUCER]
    assert parent_of(created) == span.get_span_context().span_id


def test_without_telemetry_the_context_of_the_caller_is_passed_on(place: Place, tasks: Tasks) -> None:
    """To the tasks that the task sends, unless they have their own, and to its retries."""

    @place.task(bind=True, max_retries=1)
    def sends(self: Any, session: Session) -> None:
        session.add(Line(task="sends", item="a"))
        if not self.request.retries:
            raise self.retry(countdown=1)
        tasks.note.delay("a")
        tasks.note.apply_async(("b",), headers={"traceparent": "own"})
        place.app.send_task("tests.note", ("c",))

    place.app.finalize()
    received(place, sends, headers=PARENT).execute()
    (retry,) = place.stored()
    assert {name: retry.headers[name] for name in PARENT} == PARENT
    place.value(sends, id="t2", retries=1, **PARENT)
    notes = [each.headers["traceparent"] for each in place.stored() if each.headers["task"] == "tests.note"]
    assert notes == [PARENT["traceparent"], "own", PARENT["traceparent"]]


@pytest.mark.parametrize("header", ["", "no context", 1, None])
def test_a_header_that_is_no_context_does_not_matter(tmp_path: Path, header: Any) -> None:
    """The task runs in a trace of its own."""
    recording = Recording()
    place = Place(tmp_path)
    place.create_tables()
    shop = Endpoint("celery-shop", store=place.store, telemetry=recording.telemetry)
    place.app.task_cls = ExactlyOnceTask.of(shop, place.sessions)
    assert place.value(Tasks(place).do, "a", traceparent=header) == "done a"
    (created,) = [each for each in recording.spans.get_finished_spans() if each.kind is SpanKind.PRODUCER]
    assert parent_of(created) is None


def test_an_instrumentation_of_celery_writes_its_own_context(place: Place, tasks: Tasks) -> None:
    """Its signal is sent when the message is stored."""

    def inject(headers: dict[str, str], **_: Any) -> None:
        headers["traceparent"] = "of the instrumentation"

    signals.before_task_publish.connect(inject)
    try:
        place.value(tasks.do, "a")
    finally:
        signals.before_task_publish.disconnect(inject)
    assert place.stored()[0].headers["traceparent"] == "of the instrumentation"


def test_events_of_celery_are_stored_with_the_task(place: Place, tasks: Tasks) -> None:
    """With `task_send_sent_event`, for Flower."""
    place.app.conf.task_send_sent_event = True
    place.value(tasks.do, "a")
    event, task = sorted(place.stored(), key=lambda each: "task" in each.headers)
    assert json.loads(event.text)["type"] == "task-sent"
    assert json.loads(event.text)["uuid"] == task.headers["id"]
    assert event.exchange == place.app.conf.event_exchange


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_pools_of_greenlets_are_refused(pool: str) -> None:
    """An event loop in a thread sends the messages."""
    with pytest.raises(SetupError, match="--pool=prefork"):
        check_pool(f"celery.concurrency.{pool}:TaskPool")
    check_pool("celery.concurrency.prefork:TaskPool")


def test_a_part_of_a_chord_waits_for_the_claim_of_a_process_that_died(place: Place, tasks: Tasks) -> None:
    """Redis lets no other process start the body until the claim has expired."""

    class Claims:
        claim: bytes | Exception | None = b"token of another process"

        def get(self, _key: str) -> bytes | None:
            if isinstance(self.claim, Exception):
                raise self.claim
            return self.claim

    class Backend:
        client = Claims()
        implements_incr = True
        _chord_part_return_script = None

        def get_key_for_group(self, group_id: str, suffix: str) -> str:
            return group_id + suffix

        def __getattr__(self, name: str) -> Any:
            return getattr(plain, name)

    plain = place.app.backend
    place.value(tasks.note, "a")
    tasks.note.backend = Backend()
    part = {"chord": dict(tasks.total.s()), "group": "g1"}
    for unsure in (b"token of another process", OSError("away")):
        Claims.claim = unsure
        assert place.run(tasks.note, "a", **part).info.state == "REJECTED"
    for claim in (b"done", None):
        Claims.claim = claim
        assert place.value(tasks.note, "a", **part) == "noted a"


def test_a_part_of_a_chord_that_would_count_twice_is_refused(place: Place, tasks: Tasks) -> None:
    """The result backend in memory counts up."""
    part = {"chord": dict(tasks.total.s()), "group": "g1"}
    failure = place.failure(tasks.note, "a", **part)
    assert isinstance(failure, SetupError)
    assert "counts a part again" in str(failure)
    assert place.lines() == []


@pytest.mark.parametrize("is_part", [False, True])
def test_a_part_of_a_chord_is_delivered_again_although_its_result_was_stored(place: Place, tasks: Tasks, is_part: bool) -> None:  # noqa: FBT001 - the parameter of a test
    """If its process has died: Celery counts a part, and sends the body, after it has stored the result."""
    task_id = str(uuid4())
    tasks.note.apply_async(("a",), task_id=task_id, chord=tasks.total.s() if is_part else None)
    with place.app.connection_for_write() as connection:
        message = place.app.amqp.queues[place.name](connection.channel()).get(no_ack=True)
    request = symbol_by_name(tasks.note.Request)(message, app=place.app, task=tasks.note)
    assert not request._success_was_stored()
    tasks.note.backend.store_result(task_id, "noted a", "SUCCESS")
    assert bool(request._success_was_stored()) == (not is_part)


def test_add_to_chord_is_refused(place: Place, tasks: Tasks) -> None:
    """It changes the result backend at once."""

    @place.task(bind=True)
    def adds(self: Any, session: Session) -> None:
        session.add(Line(task="adds", item="a"))
        self.add_to_chord(tasks.note.s("a"))

    assert isinstance(place.failure(adds), TransactionMisused)
    assert place.lines() == []


def test_a_soft_time_limit_within_the_commit_has_the_task_delivered_again(
    place: Place, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is unknown to this run, and known to the next one."""
    commit = Session.commit

    def interrupted(self: Session) -> None:
        commit(self)
        raise SoftTimeLimitExceeded

    close = Session.close

    def interrupted_later(self: Session) -> None:
        close(self)
        raise SoftTimeLimitExceeded

    for name, function in (("commit", interrupted), ("close", interrupted_later)):
        with monkeypatch.context() as patch:
            patch.setattr(Session, name, function)
            assert place.run(tasks.do, "a", id=f"t-{name}").info.state == "REJECTED"
        assert place.lines()[-1:] == ["a"]
        assert place.value(tasks.do, "a", id=f"t-{name}") == "done a"
    assert place.lines() == ["a", "a"]


def test_a_soft_time_limit_before_the_task_begins_has_it_delivered_again(
    place: Place, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as while it waits for another run with its key, which may have been committed."""

    def interrupted(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        patch.setattr(SessionRequest, "open", interrupted)
        assert place.run(tasks.do, "a").info.state == "REJECTED"
    assert place.value(tasks.do, "a") == "done a"


def test_a_signal_amid_the_commit_is_not_hidden_by_a_failing_rollback(place: Place, tasks: Tasks) -> None:
    """The session can neither commit nor roll back then. A soft limit delivers the task again, an exit ends the process."""

    def interrupt(_session: Session) -> None:
        raise errors[0]

    errors: list[BaseException] = [SoftTimeLimitExceeded(), SystemExit(1)]
    event.listen(place.sessions.class_, "after_commit", interrupt)
    try:
        assert place.run(tasks.do, "a", id="t1").info.state == "REJECTED"
        errors.pop(0)
        with pytest.raises(SystemExit):
            place.run(tasks.do, "b", id="t2")
    finally:
        event.remove(place.sessions.class_, "after_commit", interrupt)
    assert place.lines() == ["a", "b"]
    assert [place.value(tasks.do, item, id=id_) for item, id_ in (("a", "t1"), ("b", "t2"))] == ["done a", "done b"]
    assert place.lines() == ["a", "b"]
    assert place.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_soft_time_limit_within_the_task_undoes_it(place: Place) -> None:
    """As each exception of the task."""

    @place.task
    def slow(session: Session) -> None:
        session.add(Line(task="slow", item="a"))
        raise SoftTimeLimitExceeded

    assert isinstance(place.failure(slow), SoftTimeLimitExceeded)
    assert place.lines() == []


def test_a_task_that_takes_too_long_fails(tmp_path: Path) -> None:
    """Each further run would take as long, so it is not delivered again."""
    place = Place(tmp_path, max_commit=timedelta(milliseconds=50))
    place.create_tables()

    @place.task
    def slow(session: Session) -> None:
        session.add(Line(task="slow", item="a"))
        session.flush()
        sleep(0.1)

    failure = place.failure(slow)
    assert isinstance(failure, TransactionMisused)
    assert "max_commit" in str(failure)
    assert place.lines() == []


def test_a_worker_checks_its_sessions_at_its_start(place: Place, tmp_path: Path) -> None:
    """Without a connection."""
    check_sessions_of(place.shop)
    elsewhere = sessionmaker(create_engine(f"sqlite:///{tmp_path}/other.db"))
    ExactlyOnceTask.of(place.shop, elsewhere)
    with pytest.raises(SetupError, match="other"):
        check_sessions_of(place.shop)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_uses_nothing_of_its_parent(place: Place, tasks: Tasks) -> None:
    """It has an empty pool of connections, and a thread and a host of its own."""
    assert place.value(tasks.do, "a") == "done a"
    thread, host = sending_of(place.shop), host_of(place.shop)
    before = place.engine.pool.checkedin()  # type: ignore[attr-defined]
    read, write = os.pipe()
    if not (child := os.fork()):
        is_new = sending_of(place.shop) is not thread and host_of(place.shop) is not host
        os.write(write, f"{is_new} {place.engine.pool.checkedin()}".encode())  # type: ignore[attr-defined]
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == b"True 0"
    os.close(read)
    assert (sending_of(place.shop), host_of(place.shop)) == (thread, host)
    assert before == place.engine.pool.checkedin() == 1  # type: ignore[attr-defined]


def test_nothing_is_opened_at_import() -> None:
    """The servers that the application names are not there."""
    program = (
        "import threading, tests.integrations.celery_app as it; it.app.finalize();"
        "print(threading.active_count(), it.sessions.kw['bind'].pool.checkedin(), '_host' in vars(it.shop))"
    )
    nowhere = {
        "CELERY_TEST_STORE": "postgresql://nobody@127.0.0.1:1/x",
        "CELERY_TEST_BROKER": "amqp://127.0.0.1:1//",
        "CELERY_TEST_BACKEND": "redis://127.0.0.1:1",
        "CELERY_TEST_TRANSPORT": "amqp://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, **nowhere}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "0", "False"]


async def test_what_other_threads_commit_is_all_passed_on() -> None:
    """Also what comes at the moment in which the loop has found nothing more, and would rest."""
    heard: list[CommittedRecord] = []
    gathered = Gathered(asyncio.get_running_loop())
    of_each = [[Identity(f"thread {thread}", str(number)) for number in range(300)] for thread in range(3)]

    def commit(identities: list[Identity]) -> None:
        for each in identities:
            gathered.add([each])
            sleep(0.0005)

    with gathered.notifier.listen(heard.extend):
        await asyncio.gather(*(asyncio.to_thread(commit, identities) for identities in of_each))
        async with asyncio.timeout(30):
            while len(heard) < 900:  # noqa: ASYNC110 - the end of its time has no event
                await asyncio.sleep(0.005)
    assert [[each for each in heard if each in identities] for identities in of_each] == of_each


async def test_commits_are_gathered_while_there_are_more() -> None:
    """The first is announced at once, the others together."""
    gathered, heard = Gathered(asyncio.get_running_loop()), list[int]()
    with gathered.notifier.listen(lambda told: heard.append(len(told))):
        for number in range(5):
            gathered.add([Identity("shop", str(number))])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert heard == [1]
        gathered.flush()
        await asyncio.sleep(0)
        assert heard == [1, 4]
        gathered.add([Identity("shop", "5")])
        async with asyncio.timeout(30):
            while len(heard) < 3:  # noqa: ASYNC110 - the end of its time has no event
                await asyncio.sleep(0.005)
    assert heard == [1, 4, 1]
