"""Tasks of Celery on Django's own connection, on each of its databases: what is one commit, and what is captured."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from celery import Celery, chain, chord, group, signals
from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.fixups.django import DjangoWorkerFixup
from sqlalchemy import text

from onceonly import Endpoint as CoreEndpoint
from onceonly import testing
from onceonly.errors import InvalidEffect, KeyReused, SchemaMissing, SetupError, TransactionMisused
from onceonly.integrations.celery import ExactlyOnceTask, TaskTransaction, captured, delay, exactly_once
from onceonly.integrations.sending_thread import SendingThread
from onceonly.model.errors import CommitRefused
from tests import ROOT
from tests.django_project import alias_of, set_up
from tests.integrations.celery_models import engine_of
from tests.integrations.django_databases import PLACES, migrated

set_up()

from django.core.management import call_command  # noqa: E402 - Django is set up before
from django.db import IntegrityError, connections, transaction  # noqa: E402 - the same
from django.test.utils import CaptureQueriesContext  # noqa: E402 - the same
from sqlalchemy.orm import Session, sessionmaker  # noqa: E402 - the same

from onceonly.integrations.django import captured as captured_messages  # noqa: E402 - the same
from onceonly.integrations.django import idempotent  # noqa: E402 - the same
from tests.django_project.models import Line, Order  # noqa: E402 - the same
from tests.integrations.django_celery import DjangoPlace, DjangoTasks  # noqa: E402 - the same

PATIENCE = 30.0
"""Seconds after which what did not happen counts as lost."""


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Leave what is committed in the store, and count how often the thread that sends was to be started."""
    found: list[int] = []
    monkeypatch.setattr(SendingThread, "start", lambda *_, **__: found.append(1))
    return found


@contextmanager
def alias_on(name: str, folder: Path, *, suffix: str = "_celery") -> Iterator[str]:
    """Give a database with all tables an alias."""
    options = {"OPTIONS": {"timeout": 20}} if name == "sqlite" else {}
    with migrated(name, folder, suffix=suffix, **options) as found:
        yield found


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Make each database."""
    with alias_on(request.param, tmp_path_factory.mktemp("django")) as found:
        yield found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Make one, for what does not depend on it. Another one on SQLite may be there at the same time."""
    with alias_on("sqlite", tmp_path_factory.mktemp("django"), suffix="_celery_alone") as found:
        yield found


@pytest.fixture
def place(alias: str) -> Iterator[DjangoPlace]:
    """Make an application on each database."""
    yield from opened(alias)


@pytest.fixture
def simple(file: str) -> Iterator[DjangoPlace]:
    """Make an application on one database."""
    yield from opened(file)


def opened(alias: str, **terms: Any) -> Iterator[DjangoPlace]:
    """Make an application, and leave no rows."""
    found = DjangoPlace(alias, **terms)
    yield found
    found.close()
    call_command("flush", database=alias, interactive=False, verbosity=0)
    connections[alias].close()


def test_a_task_that_is_delivered_twice_takes_effect_once(place: DjangoPlace) -> None:
    """Rows of the ORM, follow-up tasks, key and value are one commit. The plain task of the control run is doubled."""
    tasks = DjangoTasks(place)
    assert [place.value(tasks.do, "ä") for _ in range(3)] == ["done ä"] * 3
    assert (tasks.runs, place.lines(), place.tasks(), place.keys()) == (["ä"], ["ä"], [("note", ["ä"])], 1)
    assert place.value(tasks.do, "ä", id="t2") == "done ä"
    assert place.lines() == ["ä", "ä"]
    for _ in range(2):
        place.value(tasks.plain, "control", id="t3")
    assert (place.lines().count("control"), place.sent()) == (2, ["note", "note"])


def test_a_task_that_fails_leaves_nothing(place: DjangoPlace) -> None:
    """No rows, no tasks, no events and no key. A later run does the work."""
    tasks, fails = DjangoTasks(place), [True]

    @place.task
    def breaks(item: str) -> str:
        place.add(item)
        tasks.note.delay(item)
        place.shop.publish({"item": item}, type="Broken")
        if fails:
            raise ZeroDivisionError
        return "worked"

    assert isinstance(place.failure(breaks, "a"), ZeroDivisionError)
    assert (place.lines(), records(place), place.keys()) == ([], 0, 0)
    fails.clear()
    assert [place.value(breaks, "a") for _ in range(2)] == ["worked", "worked"]
    assert (place.lines(), records(place), place.keys()) == (["a"], 2, 1)
    assert place.sent() == []


def records(place: DjangoPlace) -> int:
    """Count the messages that are committed and not sent."""
    with place.engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM onceonly_records")).scalar_one())


def test_a_savepoint_takes_its_tasks_along(place: DjangoPlace) -> None:
    """In a task, and in a block of the application."""
    tasks = DjangoTasks(place)

    def work() -> None:
        tasks.note.delay("a")
        with suppress(ZeroDivisionError), place.atomic():
            place.add("b")
            tasks.note.delay("b")
            tasks.note.delay_on_commit("b")
            raise ZeroDivisionError
        with place.atomic():
            place.add("c")
            tasks.note.delay_on_commit("c")

    task = place.task(name="tests.work")(work)
    place.value(task)
    assert (place.lines(), place.tasks()) == (["c"], [("note", ["a"]), ("note", ["c"])])
    with place.atomic():
        work()
    assert (place.lines(), sorted(place.tasks())) == (["c", "c"], [("note", ["a"])] * 2 + [("note", ["c"])] * 2)
    assert place.sent() == []


@pytest.mark.parametrize("how", ["delay", "delay_on_commit", "apply_async", "apply_async_on_commit", "signature"])
def test_a_block_of_the_application_stores_its_tasks(place: DjangoPlace, how: str) -> None:
    """With its rows, so that a process that dies after the commit loses none. A rollback drops them."""
    tasks = DjangoTasks(place)

    def send(item: str) -> None:
        if how == "signature":
            tasks.note.s(item).delay()
        elif how.startswith("delay"):
            getattr(tasks.note, how)(item)
        else:
            getattr(tasks.note, how)((item,), countdown=60)

    with suppress(ZeroDivisionError), place.atomic():
        place.add("a")
        send("a")
        raise ZeroDivisionError
    assert (place.lines(), place.tasks()) == ([], [])
    with transaction.atomic(), place.atomic():  # the outer one is of the default database, and does not matter
        place.add("b")
        send("b")
        assert place.tasks() == []
    assert (place.lines(), place.tasks(), place.sent()) == (["b"], [("note", ["b"])], [])
    assert bool(place.stored()[0].headers["eta"]) == how.startswith("apply")


def test_outside_of_a_block_a_task_is_sent_at_once(place: DjangoPlace) -> None:
    """As by Celery, also in the block of another database, and after the commit."""
    tasks = DjangoTasks(place)
    tasks.note.delay("a")
    tasks.note.delay_on_commit("b")
    with transaction.atomic():
        tasks.note.delay("c")
        assert place.sent() == ["note"] * 3
        tasks.note.delay_on_commit("d")  # on the default database, as Celery's own class
        assert place.sent() == []
    assert place.sent() == ["note"]
    with place.atomic():
        transaction.on_commit(lambda: tasks.note.delay("e"), using=place.alias)
    assert place.sent() == ["note"]
    assert place.tasks() == []


def test_an_idempotent_view_sends_its_task_once(simple: DjangoPlace) -> None:
    """Under its key, so that a repeated request sends nothing."""
    tasks = DjangoTasks(simple)
    from django.http import HttpResponse  # noqa: PLC0415 - Django is set up before
    from django.test import RequestFactory  # noqa: PLC0415 - the same

    @idempotent(simple.shop)
    def view(_request: Any) -> HttpResponse:
        order = simple.add("a")
        tasks.note.delay_on_commit(order.pk)
        return HttpResponse(status=201)

    request = RequestFactory().post("/", headers={"Idempotency-Key": "k"})
    assert [view(request).status_code for _ in range(2)] == [201, 201]
    assert (simple.lines(), len(simple.tasks()), simple.sent()) == (["a"], 1, [])


@dataclass
class PlaceOrder:
    """A message."""

    name: str


def test_a_handler_sends_its_task_once(place: DjangoPlace) -> None:
    """In the transaction of the message, also when it comes again, or when its process dies."""
    tasks = DjangoTasks(place)

    @place.shop.handler
    def place_order(order: PlaceOrder) -> None:
        place.add(order.name)
        tasks.note.delay_on_commit(order.name)

    async def deliver() -> None:
        async with testing.run(place.shop) as opened:
            await opened.deliver(PlaceOrder("a"), id="a", crash_at="before-commit")
            await opened.deliver(PlaceOrder("a"), id="a")

    asyncio.run(deliver())
    assert (place.lines(), place.tasks(), place.sent()) == (["a"], [("note", ["a"])], [])


def test_canvas_in_a_task(place: DjangoPlace) -> None:
    """Chain, group and link of a task, and callbacks of its caller, of which a known key sends nothing again."""
    tasks = DjangoTasks(place)

    @place.task
    def sends() -> None:
        place.add("sends")
        chain(tasks.do.s("chain"), tasks.note.s()).delay()
        group(tasks.note.s(each) for each in "ab").delay()
        tasks.note.apply_async(("linked",), link=tasks.note.s())

    callbacks = [json.loads(json.dumps(tasks.note.si("callback")))]
    follow = [json.loads(json.dumps(tasks.note.si("next")))]
    for _ in range(2):
        place.value(sends, callbacks=callbacks, chain=follow)
    found = sorted(args[0] for _, args in place.tasks())
    assert found == ["a", "b", "callback", "chain", "linked", "next"]
    assert (place.lines(), place.sent()) == (["sends"], [])


def test_canvas_in_a_block_of_the_application(simple: DjangoPlace) -> None:
    """Tasks that take effect once are stored, whatever sends them."""
    tasks = DjangoTasks(simple)
    with simple.atomic():
        chain(tasks.do.s("chain"), tasks.note.s()).delay()
        group(tasks.note.s(each) for each in "ab").delay()
    assert sorted(args[0] for _, args in simple.tasks()) == ["a", "b", "chain"]
    assert simple.sent() == []


def test_a_chord_is_stored_with_the_task_that_unlocks_it(simple: DjangoPlace, tmp_path: Path) -> None:
    """Celery's own task, which has the class as well."""
    simple.app.conf.result_backend = f"file://{tmp_path}"
    tasks = DjangoTasks(simple)
    with simple.atomic():
        chord([tasks.note.s("a"), tasks.note.s("b")], tasks.total.s()).delay()
    names = sorted(str(each.headers["task"]) for each in simple.stored())
    assert names == ["celery.chord_unlock", "tests.note", "tests.note"]
    unlock, first, second = sorted(simple.stored(), key=lambda each: (str(each.headers["task"]), each.text))
    args, kwargs, _ = json.loads(unlock.text)
    unlocking, again = simple.app.tasks["celery.chord_unlock"], {"id": unlock.headers["id"], "kwargs": kwargs}
    simple.value(tasks.note, "a", id=first.headers["id"])
    assert simple.run(unlocking, *args, **again).info.state == "RETRY"
    simple.value(tasks.note, "b", id=second.headers["id"])
    for _ in range(2):
        simple.value(unlocking, *args, **again, retries=1)
    assert [str(each.headers["task"]) for each in simple.stored()].count("tests.total") == 1


def test_what_captured_encloses_is_stored(simple: DjangoPlace) -> None:
    """Tasks of other classes, also by name, and `delay_on_commit` of Celery's own class for Django."""
    tasks = DjangoTasks(simple)

    def send() -> None:
        tasks.plain.delay("a")
        simple.app.send_task("tests.plain", ("b",))
        tasks.plain_django.delay_on_commit("c")
        tasks.plain_django.apply_async_on_commit(("d",))

    with transaction.atomic(), simple.atomic():  # Celery's own class waits for the default database
        with captured(simple.shop):
            send()
        delay(simple.shop, tasks.plain, "e")
    assert sorted(args[0] for _, args in simple.tasks()) == ["a", "b", "c", "d", "e"]
    assert simple.sent() == []
    with transaction.atomic():
        simple.value(simple.task(name="tests.sends")(send))
    assert sorted(args[0] for _, args in simple.tasks()) == ["a", "a", "b", "b", "c", "c", "d", "d", "e"]
    with transaction.atomic(), simple.atomic():
        tasks.plain.delay("f")  # a plain task is a plain task
        tasks.plain_django.delay_on_commit("g")
        assert simple.sent() == ["plain"]
    assert simple.sent() == ["plain_django"]


def test_captured_outside_of_a_block_has_nothing_to_store_in(simple: DjangoPlace) -> None:
    """The error names the block."""
    tasks = DjangoTasks(simple)
    with captured(simple.shop), pytest.raises(TransactionMisused, match=r"transaction.atomic\(using='sqlite_celery_alone'\)"):
        tasks.plain.delay("a")
    with captured(simple.shop), pytest.raises(TransactionMisused, match="none is open"):
        tasks.note.delay("a")
    assert simple.sent() == simple.tasks() == []


def test_the_result_of_a_stored_task_cannot_be_waited_for_inside_of_the_block(simple: DjangoPlace) -> None:
    """It would wait for ever."""
    tasks = DjangoTasks(simple)
    with simple.atomic():
        with simple.atomic():
            result = tasks.note.delay("a")
        with pytest.raises(TransactionMisused, match="sent after the commit"):
            result.get()
    assert simple.stored()[0].headers["id"] == result.id
    simple.app.backend.store_result(result.id, "noted", "SUCCESS")
    assert result.get(timeout=PATIENCE) == "noted"


def test_a_connection_of_the_caller_is_refused_in_a_block(simple: DjangoPlace) -> None:
    """The task would be sent before the commit."""
    tasks = DjangoTasks(simple)
    refused = pytest.raises(TransactionMisused, match="connection=")
    with simple.app.connection_for_write() as connection, simple.atomic(), refused:
        tasks.note.apply_async(("a",), connection=connection)
    assert simple.sent() == simple.tasks() == []


def test_a_retry_is_stored_when_the_work_is_undone(place: DjangoPlace) -> None:
    """In a block of its own. The run that succeeds is the only one that has an effect."""
    tasks = DjangoTasks(place)

    @place.task(bind=True, max_retries=1)
    def retries(self: Any, item: str) -> int:
        place.add(item)
        tasks.note.delay(item)
        if not self.request.retries:
            raise self.retry(countdown=5)
        return int(self.request.retries)

    assert isinstance(place.run(retries, "a").info.retval, Retry)
    assert (place.lines(), place.keys()) == ([], 0)
    (stored,) = place.stored()
    assert (stored.headers["id"], stored.headers["retries"], bool(stored.headers["eta"])) == ("t1", 1, True)
    assert [place.value(retries, "a", retries=1) for _ in range(2)] == [1, 1]
    assert (place.lines(), [name for name, _ in place.tasks()].count("note")) == (["a"], 1)


def test_autoretry_covers_what_the_database_refuses(place: DjangoPlace) -> None:
    """And leaves nothing."""

    @place.task(autoretry_for=(IntegrityError,), retry_kwargs={"max_retries": 1, "countdown": 1})
    def inserts(number: int) -> None:
        place.add("row")
        Order.objects.using(place.alias).create(pk=number, name="again")

    with place.atomic():
        Order.objects.using(place.alias).create(pk=77, name="first")
    assert place.run(inserts, 77).info.state == "RETRY"
    assert isinstance(place.failure(inserts, 77, retries=1), IntegrityError)
    assert (place.lines(), place.keys()) == (["first"], 0)


def test_a_constraint_that_fails_at_the_commit_fails_the_task(place: DjangoPlace) -> None:
    """On MariaDB, whose constraints are not deferred, the statement fails."""
    tasks = DjangoTasks(place)

    @place.task
    def inserts() -> None:
        place.add("a")
        tasks.note.delay("a")
        Line.objects.using(place.alias).create(order_id=999)

    assert isinstance(place.failure(inserts), IntegrityError | CommitRefused)
    assert (place.lines(), place.tasks(), place.keys()) == ([], [], 0)


def test_an_error_that_was_caught_in_a_broken_transaction_fails_the_task(place: DjangoPlace) -> None:
    """PostgreSQL has undone all. On other databases one statement had no effect, and the task has succeeded."""

    @place.task
    def catches() -> str:
        order = place.add("a")
        with suppress(IntegrityError), connections[place.alias].cursor() as cursor:
            cursor.execute("INSERT INTO django_project_order (id, name) VALUES (%s, 'b')", (order.pk,))
        return "caught"

    if connections[place.alias].vendor == "postgresql":
        assert isinstance(place.failure(catches), CommitRefused)
        assert (place.lines(), place.keys()) == ([], 0)
    else:
        assert place.value(catches) == "caught"
        assert (place.lines(), place.keys()) == (["a"], 1)


@pytest.mark.parametrize("how", ["set_rollback", "savepoint=False", "refused row"])
def test_a_transaction_that_has_to_be_rolled_back_fails_the_task(place: DjangoPlace, how: str) -> None:
    """Its callbacks and its value would have no rows. The error names both causes."""
    tasks = DjangoTasks(place)

    @place.task
    def undoes() -> str:
        place.add("a")
        tasks.note.delay("a")
        if how == "set_rollback":
            transaction.set_rollback(True, using=place.alias)
        elif how == "refused row":
            with suppress(IntegrityError):
                Order.objects.using(place.alias).create(pk=Order.objects.using(place.alias).get().pk, name="b")
        else:
            with suppress(ZeroDivisionError), place.atomic(savepoint=False):
                raise ZeroDivisionError
        return "undone"

    failure = place.failure(undoes, callbacks=[json.loads(json.dumps(tasks.note.si("callback")))])
    assert isinstance(failure, CommitRefused)
    assert "set_rollback(True)" in str(failure)
    assert (place.lines(), place.tasks(), place.keys()) == ([], [], 0)


def test_a_block_that_is_left_open_fails_the_task(place: DjangoPlace) -> None:
    """The next task has a new connection."""

    @place.task
    def leaves() -> None:
        place.add("a")
        place.atomic().__enter__()

    failure = place.failure(leaves)
    assert isinstance(failure, TransactionMisused)
    assert "open" in str(failure)
    assert place.lines() == []
    assert place.value(DjangoTasks(place).do, "b", id="t2") == "done b"
    assert place.lines() == ["b"]


def test_a_connection_that_the_task_has_closed_fails_it(place: DjangoPlace) -> None:
    """As some tasks of old do."""

    @place.task
    def closes() -> None:
        place.add("a")
        connections[place.alias].close()

    failure = place.failure(closes)
    assert isinstance(failure, TransactionMisused)
    assert "connection.close()" in str(failure)
    assert place.lines() == []
    assert place.value(DjangoTasks(place).do, "b", id="t2") == "done b"


def test_a_connection_that_is_lost_has_the_task_delivered_again(place: DjangoPlace) -> None:
    """In a task, also if it catches the error, and between two tasks."""
    if (vendor := connections[place.alias].vendor) == "sqlite":
        pytest.skip("a file has no connection to lose")
    tasks, lost = DjangoTasks(place), ["raised", "caught"]

    def end_connection() -> None:
        ask = "SELECT pg_backend_pid()" if vendor == "postgresql" else "SELECT connection_id()"
        with connections[place.alias].cursor() as cursor:
            cursor.execute(ask)
            number = cursor.fetchone()[0]
        end = "SELECT pg_terminate_backend(:number, 5000)" if vendor == "postgresql" else f"KILL {number}"
        with place.engine.connect() as other:
            other.execute(text(end), {"number": number} if vendor == "postgresql" else {})

    @place.task
    def loses(item: str) -> str:
        tasks.note.delay(item)
        if lost:
            how = lost.pop()
            end_connection()
            if how == "raised":
                place.add(item)
            with suppress(Exception):
                place.add(item)
            return "lost"
        place.add(item)
        return "kept"

    assert place.run(loses, "a").info.state == "REJECTED"
    assert place.run(loses, "a").info.state == "REJECTED"
    assert place.value(loses, "a") == "kept"
    assert (place.lines(), place.tasks()) == (["a"], [("note", ["a"])])
    end_connection()
    with connections[place.alias].cursor() as cursor, suppress(Exception):
        cursor.execute("SELECT 1")  # an error, after which Django looks whether the connection can be used
    assert place.value(tasks.do, "b", id="t2") == "done b"


def test_another_run_with_the_key_has_the_task_delivered_again(place: DjangoPlace) -> None:
    """Then it is known. Celery does not count it as a retry."""
    tasks, is_inside, may_go = DjangoTasks(place), threading.Event(), threading.Event()

    @place.task
    def holds(item: str) -> str:
        place.add(item)
        tasks.note.delay(item)
        is_inside.set()
        assert may_go.wait(PATIENCE)
        return f"held {item}"

    place.app.finalize()
    outcomes: list[Any] = []

    def first() -> None:
        try:
            outcomes.append(place.run(holds, "a"))
        finally:
            connections[place.alias].close()

    thread = threading.Thread(target=first)
    thread.start()
    assert is_inside.wait(PATIENCE)
    try:
        rejected = place.run(holds, "a")
    finally:
        may_go.set()
        thread.join()
    assert (rejected.info.state, rejected.info.retval.requeue) == ("REJECTED", True)
    assert outcomes[0].retval == place.value(holds, "a") == "held a"
    assert (place.lines(), place.tasks()) == (["a"], [("note", ["a"])])


def test_a_key_of_the_arguments(place: DjangoPlace) -> None:
    """Two ids with one key are one piece of work, and the same key for other arguments is refused."""

    @place.task(key=lambda item, **_: item)
    def keyed(item: str, amount: int) -> int:
        place.add(item)
        return amount

    assert [place.value(keyed, "a", 1, id=each) for each in ("t1", "t2")] == [1, 1]
    assert isinstance(place.failure(keyed, "a", 2, id="t3"), KeyReused)
    assert place.lines() == ["a"]


def test_a_known_task_has_the_rest_sent(simple: DjangoPlace, starts: list[int]) -> None:
    """A relay of this process finds what the first run has left."""
    tasks = DjangoTasks(simple)
    simple.value(tasks.do, "a")
    starts.clear()
    simple.value(tasks.do, "a")
    assert starts == [1]


@pytest.mark.parametrize(("error", "state"), [(Reject("no", requeue=False), "REJECTED"), (Ignore("no"), "IGNORED")])
def test_reject_and_ignore_undo_the_task(simple: DjangoPlace, error: Exception, state: str) -> None:
    """As every other exception."""
    tasks = DjangoTasks(simple)

    @simple.task
    def refuses() -> None:
        simple.add("a")
        tasks.note.delay("a")
        raise error

    assert simple.run(refuses).info.state == state
    assert (simple.lines(), simple.tasks()) == ([], [])


def test_a_task_that_replaces_itself(simple: DjangoPlace) -> None:
    """The replacement has its id, and is committed with its rows."""
    tasks = DjangoTasks(simple)

    @simple.task(bind=True)
    def replaces(self: Any, item: str) -> None:
        simple.add(item)
        raise self.replace(tasks.do.s(item))

    assert [simple.run(replaces, "a").info.state for _ in range(2)] == ["IGNORED"] * 2
    (stored,) = simple.stored()
    assert (stored.headers["id"], stored.headers["task"], simple.lines()) == ("t1", "tests.do", ["a"])


def test_a_task_called_as_a_function_works_in_the_same_block(simple: DjangoPlace) -> None:
    """What it sends is committed with the task that calls it."""
    tasks = DjangoTasks(simple)

    @simple.task
    def outer() -> str:
        simple.add("outer")
        return str(tasks.do("inner"))

    assert simple.value(outer) == "done inner"
    assert (simple.lines(), simple.tasks()) == (["outer", "inner"], [("note", ["inner"])])
    assert tasks.do("by hand") == "done by hand"


def test_a_value_that_cannot_be_stored_is_refused_before_the_commit(simple: DjangoPlace) -> None:
    """Celery would store the failure of a task whose rows are committed."""

    @simple.task
    def returns() -> object:
        simple.add("a")
        return object()

    assert isinstance(simple.failure(returns), InvalidEffect)
    assert simple.lines() == []


def test_a_task_that_takes_too_long_fails(file: str) -> None:
    """Each further run would take as long, so it is not delivered again."""
    for place in opened(file, max_commit=timedelta(milliseconds=50)):

        @place.task
        def slow(place: DjangoPlace = place) -> None:
            place.add("a")
            sleep(0.1)

        failure = place.failure(slow)
        assert isinstance(failure, TransactionMisused)
        assert "max_commit" in str(failure)
        assert place.lines() == []


@pytest.mark.parametrize("when", ["before COMMIT", "after COMMIT", "after the block", "within the task"])
def test_a_soft_time_limit(place: DjangoPlace, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Within the commit, the task is delivered again, and is known or is done then. Within the task, it is undone."""
    tasks = DjangoTasks(place)
    wrapper = type(connections[place.alias])
    name = "_set_autocommit" if when == "after the block" else "_commit"
    method = getattr(wrapper, name)

    def interrupted(self: Any, *arguments: Any) -> Any:
        if arguments == (False,):  # of the beginning
            return method(self, *arguments)
        if when == "after COMMIT":
            method(self)
        raise SoftTimeLimitExceeded

    @place.task
    def slow() -> None:
        place.add("slow")
        raise SoftTimeLimitExceeded

    if when == "within the task":
        assert isinstance(place.failure(slow), SoftTimeLimitExceeded)
        assert (place.lines(), place.keys()) == ([], 0)
        return
    with monkeypatch.context() as patch:
        place.app.finalize()
        connections[place.alias].ensure_connection()
        patch.setattr(wrapper, name, interrupted)
        assert place.run(tasks.do, "a").info.state == "REJECTED"
    assert place.value(tasks.do, "a") == "done a"
    assert place.value(tasks.do, "b", id="t2") == "done b"
    assert (place.lines(), sorted(place.tasks())) == (["a", "b"], [("note", ["a"]), ("note", ["b"])])


def test_a_connection_without_autocommit_is_refused(place: DjangoPlace) -> None:
    """Django's blocks would not commit, and the task would report success."""
    django, tasks = connections[place.alias], DjangoTasks(place)
    django.ensure_connection()
    django.set_autocommit(False)
    try:
        failure = place.failure(tasks.do, "a")
        assert isinstance(failure, SetupError)
        assert "AUTOCOMMIT" in str(failure)
    finally:
        django.set_autocommit(True)
    assert place.value(tasks.do, "a") == "done a"
    assert place.lines() == ["a"]


def test_a_callback_that_fails_after_the_commit_does_not_fail_the_task(
    simple: DjangoPlace, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged. The task is committed, and so are its callbacks."""

    @simple.task
    def adds() -> str:
        simple.add("a")
        transaction.on_commit(lambda: {}["missing"], using=simple.alias)
        return "added"

    with caplog.at_level(logging.ERROR, "onceonly.transaction"):
        assert simple.value(adds) == "added"
    assert "callback of on_commit failed" in caplog.text
    assert "KeyError" in caplog.text
    assert simple.lines() == ["a"]


@pytest.mark.parametrize("reuse", [0, 2])
def test_the_fixup_of_celery_closes_connections_around_the_block(place: DjangoPlace, reuse: int) -> None:
    """Before and after each task, or after some tasks. The block in between is kept."""
    place.app.conf.CELERY_DB_REUSE_MAX = reuse
    fixup, tasks = DjangoWorkerFixup(place.app), DjangoTasks(place)
    fixup._db = _OneDatabase(place.alias)  # type: ignore[assignment]
    signals.task_prerun.connect(fixup.on_task_prerun)
    signals.task_postrun.connect(fixup.on_task_postrun)
    try:
        for number in range(12):
            assert [place.value(tasks.do, "a", id=f"t{number}") for _ in range(2)] == ["done a"] * 2
    finally:
        signals.task_prerun.disconnect(fixup.on_task_prerun)
        signals.task_postrun.disconnect(fixup.on_task_postrun)
    assert (place.lines(), len(place.tasks()), len(tasks.runs)) == (["a"] * 12, 12, 12)


def test_a_connection_is_kept_as_long_as_celery_keeps_it(place: DjangoPlace) -> None:
    """Whatever CONN_MAX_AGE says. One that has failed is replaced."""
    tasks = DjangoTasks(place)
    place.value(tasks.do, "a")
    django = connections[place.alias]
    first = django.connection
    assert first is not None
    place.value(tasks.do, "b", id="t2")
    assert django.connection is first
    django.errors_occurred = True
    place.value(tasks.do, "c", id="t3")
    assert django.connection is not first


class _OneDatabase:
    """Has the fixup close the connections of one database, and none that other tests have."""

    def __init__(self, alias: str) -> None:
        self.connections, self._alias = self, alias

    def all(self, **_: Any) -> list[Any]:
        return [connections[self._alias]]


def test_eager_tasks_run_after_the_commit(simple: DjangoPlace) -> None:
    """Of a block of the application, and of a task. A rollback drops those of a block."""
    simple.app.conf.update(task_always_eager=True, task_eager_propagates=True)
    tasks = DjangoTasks(simple)
    with suppress(ZeroDivisionError), simple.atomic():
        tasks.do.delay("dropped")
        raise ZeroDivisionError
    with simple.atomic():
        simple.add("row")
        tasks.do.delay("a")
        tasks.do.delay_on_commit("b")
        assert tasks.runs == []
    assert tasks.runs == ["a", "b"]
    assert simple.lines() == ["row", "a", "note a", "b", "note b"]
    assert tasks.do.delay("c").get() == "done c"
    assert (simple.sent(), simple.tasks()) == ([], [])


def test_the_transaction_of_a_test_case_is_not_a_block_of_the_application(simple: DjangoPlace) -> None:
    """Tasks are sent as outside of one, and an eager task runs in a savepoint of it."""
    tasks = DjangoTasks(simple)
    around: Any = simple.atomic()
    around._from_testcase = True
    with around:
        tasks.note.delay("a")
        assert simple.sent() == ["note"]
        with captured_messages(simple.shop) as messages, simple.atomic():
            tasks.note.delay("b")
        assert [each.options["type"] for each in messages.messages] == ["tests.note"]
        simple.app.conf.update(task_always_eager=True, task_eager_propagates=True)
        assert tasks.do.delay("c").get() == "done c"
        assert [each.name for each in Order.objects.using(simple.alias).order_by("pk")] == ["c", "note c"]
        transaction.set_rollback(True, using=simple.alias)
    assert simple.lines() == []


def test_a_session_is_not_injected(simple: DjangoPlace) -> None:
    """The error says what to do instead."""

    @simple.task
    def by_session(session: Session) -> Session:
        return session

    @simple.task
    def by_transaction(tx: TaskTransaction) -> TaskTransaction:
        return tx

    for task, words in ((by_session, "use the ORM"), (by_transaction, "use `send` and `publish` of the endpoint")):
        failure = simple.failure(task, id=task.name)
        assert isinstance(failure, SetupError)
        assert words in str(failure)


def test_sessions_and_django_exclude_each_other(simple: DjangoPlace) -> None:
    """The errors name the class to use."""
    engine = engine_of(simple.store)
    with pytest.raises(SetupError, match=r"use ExactlyOnceTask.of\(shop\)"):
        ExactlyOnceTask.of(simple.shop, sessionmaker(engine))
    with pytest.raises(SetupError, match=r"ExactlyOnceTask.of\(shop, sessions\)"):
        ExactlyOnceTask.of(CoreEndpoint("other", store=simple.store))


def test_a_decorator_for_one_task(simple: DjangoPlace) -> None:
    """Other tasks of its application stay as they are."""
    app = Celery(f"{simple.name}-plain", broker="memory://", backend="cache+memory://", set_as_current=False)

    @exactly_once(app, simple.shop, key=lambda item: item, shared=False)
    def once(item: str) -> str:
        simple.add(item)
        return item

    @app.task(shared=False)
    def plain(item: str) -> str:
        return item

    app.finalize()
    assert isinstance(once, ExactlyOnceTask)
    assert not isinstance(plain, ExactlyOnceTask)
    assert [simple.value(once, "a", id=id_) for id_ in ("t1", "t2")] == ["a", "a"]
    assert simple.lines() == ["a"]


def test_a_worker_checks_the_tables_at_its_start(simple: DjangoPlace, tmp_path: Path) -> None:
    """It leaves no connection to the children that it forks."""
    transactions = simple.app.Task._once.transactions
    transactions.check()
    assert connections[simple.alias].connection is None
    with alias_of("celery_empty", f"sqlite:///{tmp_path}/empty.db") as empty:
        bare = DjangoPlace(empty)
        with pytest.raises(SchemaMissing, match=r"manage.py migrate"):
            bare.app.Task._once.transactions.check()
        failure = bare.failure(DjangoTasks(bare).note, "a")
        assert "manage.py migrate" in str(failure)
        bare.close()
    with alias_of("celery_away", "postgresql://nobody@127.0.0.1:1/x") as away:
        DjangoPlace(away).app.Task._once.transactions.check()


def test_statements_of_a_task(place: DjangoPlace) -> None:
    """Two of its own on PostgreSQL: one takes the key, the other stores value, records and answer."""
    tasks = DjangoTasks(place)
    place.value(tasks.do, "a")
    with CaptureQueriesContext(connections[place.alias]) as queries:
        place.value(tasks.do, "b", id="t2")
    own = [each["sql"] for each in queries.captured_queries if "onceonly_" in each["sql"]]
    if connections[place.alias].vendor == "postgresql":
        assert len(own) == 2, own


@pytest.mark.slow
def test_django_is_imported_for_an_endpoint_of_django_only(tmp_path: Path) -> None:
    """Applications with sessions do without it."""
    program = (
        "import sys; from celery import Celery; from sqlalchemy import create_engine; from sqlalchemy.orm import sessionmaker;"
        "from onceonly import Endpoint; from onceonly.integrations.celery import ExactlyOnceTask;"
        f"shop = Endpoint('shop', store='sqlite:///{tmp_path}/x.db');"
        "app = Celery('x', task_cls=ExactlyOnceTask.of(shop, sessionmaker(create_engine('sqlite://')))); app.finalize();"
        "print(any(name.startswith(('django.db', 'onceonly.integrations.django')) for name in sys.modules))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False"]


@pytest.mark.slow
def test_celery_finds_the_tasks_of_a_project_that_has_no_tasks_of_django(tmp_path: Path) -> None:
    """It imports the module `tasks` of each app, of which that of onceonly needs Django 6.0 or django-tasks."""
    program = (
        "import sys; sys.modules['django_tasks'] = sys.modules['django.tasks'] = None;"
        "from tests.django_project.celery_app import app; app.loader.import_default_modules();"
        "print('tests.django_project.tasks.note' in app.tasks)"
    )
    environment = {
        "CELERY_TEST_STORE": f"sqlite:///{tmp_path}/x.db",
        "CELERY_TEST_PREFIX": "x",
        "CELERY_TEST_BROKER": "memory://",
        "DJANGO_SETTINGS_MODULE": "tests.django_project.celery_settings",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True"], done.stderr
