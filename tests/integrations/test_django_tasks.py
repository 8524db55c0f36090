"""Tasks of Django that are part of the transaction that enqueues them, and take effect once, on each of its databases."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync

from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidEffect, Reject, RetryLater
from onceonly.formats.bodies import codec_for, encode_body
from tests.django_project import TASKS_APP, set_up
from tests.integrations.django_databases import PLACES, migrated

set_up()

from django.core.exceptions import ImproperlyConfigured  # noqa: E402 - Django is set up before
from django.core.management import CommandError, call_command  # noqa: E402 - the same
from django.db import DatabaseError, OperationalError, connections, transaction  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same
from django.utils import timezone  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, captured, checks  # noqa: E402 - the same
from onceonly.integrations.django.endpoint import place_of_endpoint  # noqa: E402 - the same
from onceonly.integrations.django.models import TaskResult  # noqa: E402 - the same
from onceonly.integrations.django.task_interface import (  # noqa: E402 - the same
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from onceonly.integrations.django.task_runs import handler_of, worker_id  # noqa: E402 - the same
from onceonly.integrations.django.tasks import RunTask, TaskBackend  # noqa: E402 - the same
from tests.django_project.models import Line, Order  # noqa: E402 - the same

try:
    from django.tasks import task, task_backends
except ModuleNotFoundError:
    from django_tasks import task, task_backends

SHOP: Endpoint
"""The endpoint that the settings name: that of the test."""
SEEN: list[Any] = []
"""What tasks have seen."""
HOOKS: list[Callable[[], Any]] = []
"""What a task does beside its own work."""


def settings_of(**options: Any) -> dict[str, Any]:
    """Return the settings of a project with the backend."""
    backend = {
        "BACKEND": "onceonly.integrations.django.tasks.TaskBackend",
        "QUEUES": ["default", "slow"],
        "OPTIONS": {"ENDPOINT": f"{__name__}:SHOP", **options},
    }
    return {"TASKS": {"default": backend}, "ONCEONLY": {"ENDPOINTS": [f"{__name__}:SHOP"], "SENDING_THREAD": False}}


@task()
def place(name: str, *, number: int = 1) -> dict[str, Any]:
    """Write a row."""
    order = Order.objects.using(SHOP.database).create(name=name)
    return {"name": order.name, "number": number}


@task()
def fail(name: str) -> None:
    """Write a row, and fail."""
    Order.objects.using(SHOP.database).create(name=name)
    raise ZeroDivisionError("no 0")


@task(takes_context=True)
def look(context: Any) -> int:
    """See the result from within."""
    result = context.task_result
    SEEN.append((result.id, result.status, context.attempt))
    result.refresh()
    SEEN.append(result.status)
    return int(context.attempt)


@task()
async def place_async(name: str) -> str:
    """Write a row in a coroutine. The name "fails" does what it says."""
    await Order.objects.using(SHOP.database).acreate(name=name)
    if name == "fails":
        raise ZeroDivisionError
    return name


@task()
def return_what_is_no_json(what: str) -> Any:
    """Write a row, and return what cannot be stored."""
    Order.objects.using(SHOP.database).create(name="a")
    return {"object": object(), "nan": float("nan"), "bytes": b"\xff"}[what]


@task()
def enqueue_another(fails: bool) -> str:  # noqa: FBT001 - of a task
    """Enqueue a task in a task."""
    another = place.enqueue("b")
    if fails:
        raise ZeroDivisionError
    return str(another.id)


@task()
def raise_this(kind: str) -> None:
    """Write a row, and raise what is none of the task's faults, or one."""
    Order.objects.using(SHOP.database).create(name="a")
    if kind == "later":
        raise RetryLater(60)
    if kind == "rejects":
        raise Reject("never")
    if kind == "outage":
        raise OperationalError("the server is away")
    if kind == "group":
        raise ExceptionGroup("two", [ValueError(), OperationalError("the server is away")])
    with connections[SHOP.database].cursor() as cursor:
        if kind == "rolled-back":
            cursor.execute("ROLLBACK")
            Order.objects.using(SHOP.database).create(name="b")
        cursor.execute("SELECT nothing FROM django_project_order")


@task()
def change_locked(order: int) -> None:
    """Change a row that another transaction has locked."""
    settings = {"postgresql": "SET LOCAL lock_timeout = 50", "mysql": "SET innodb_lock_wait_timeout = 1"}
    django = connections[SHOP.database]
    with django.cursor() as cursor:
        cursor.execute(settings[django.vendor])
    Order.objects.using(SHOP.database).filter(pk=order).update(name="c")


@task()
def swallow_deadlock(one: int, two: int) -> None:
    """Meet a deadlock, catch it, and go on. The ORM would notice it, and a cursor does not."""
    orders = Order.objects.using(SHOP.database)
    orders.filter(pk=one).update(name="c")
    HOOKS[0]()
    with connections[SHOP.database].cursor() as cursor:
        try:
            cursor.execute(f"UPDATE django_project_order SET name = 'c' WHERE id = {two}")  # noqa: S608 - of this test
        except OperationalError:
            SEEN.append("deadlock")
    orders.create(name="after")


@task()
def place_line(order: int) -> None:
    """Write a row whose order does not exist."""
    Line.objects.using(SHOP.database).create(order_id=order)


@task()
def delete_results() -> None:
    """Delete all results."""
    TaskResult.objects.using(SHOP.database).all().delete()


def _decorated() -> Any:
    return None


under_another_name = task(_decorated)


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias."""
    with migrated(request.param, tmp_path_factory.mktemp("django")) as found:
        yield found


@pytest.fixture
def shop(alias: str) -> Iterator[Endpoint]:
    """Make the endpoint of the settings, whose messages nobody sends, and leave no rows."""
    global SHOP  # noqa: PLW0603 - the settings name it
    SHOP = Endpoint("shop", database=alias, transport=f"memory://{uuid4().hex}")
    SEEN.clear()
    with override_settings(**settings_of()):
        yield SHOP
    call_command("flush", database=alias, interactive=False, verbosity=0)


def kept(alias: str) -> tuple[int, int, int]:
    """Count orders, records and results, past the library."""
    with connections[alias].cursor() as cursor:
        found = []
        for table in ("django_project_order", "onceonly_records", "onceonly_task_results"):
            cursor.execute(f"SELECT count(*) FROM {table}")  # noqa: S608 - of this test
            found.append(int(cursor.fetchone()[0]))
    return found[0], found[1], found[2]


@contextmanager
def other_connection(alias: str) -> Iterator[Any]:
    """Give a cursor on a connection of its own."""
    other = connections[alias].copy()
    other.inc_thread_sharing()
    try:
        with other.cursor() as cursor:
            yield cursor
    finally:
        other.close()


@contextmanager
def sent(shop: Endpoint) -> Iterator[list[RunTask]]:
    """Collect the messages of tasks that are committed within a block, as they arrive."""
    found: list[RunTask] = []
    with captured(shop) as messages:
        yield found
        found += [codec_for(RunTask).decode(encode_body(each)[0]) for each in messages.bodies]


def deliver(shop: Endpoint, run: RunTask, *, attempts: int = 0) -> None:
    """Run the handler of tasks, as a worker does."""
    handler_of(shop.database, lambda: place_of_endpoint(shop))(run, SimpleNamespace(attempts=attempts))  # type: ignore[arg-type]


def enqueued(shop: Endpoint, work: Any, *args: Any, **kwargs: Any) -> tuple[Any, RunTask]:
    """Enqueue a task. Returns its result and its message."""
    with sent(shop) as runs:
        result = work.enqueue(*args, **kwargs)
    return result, runs[0]


def test_a_task_is_enqueued_by_the_commit(shop: Endpoint, alias: str) -> None:
    """Its result and its message, to the endpoint itself."""
    with captured(shop) as published, transaction.atomic(using=alias):
        result = place.enqueue("a", number=2)
        order = Order.objects.using(alias).create(name="first")
    (message,) = published.messages
    run = message.body
    assert (message.to, run.result, run.task, run.args, run.kwargs) == (
        "shop",
        result.id,
        f"{__name__}.place",
        ["a"],
        {"number": 2},
    )
    assert kept(alias) == (1, 1, 1)
    assert order.pk
    assert (result.status, result.attempts, result.is_finished) == (TaskResultStatus.READY, 0, False)
    found = place.get_result(result.id)
    assert (found.args, found.kwargs, found.enqueued_at) == (["a"], {"number": 2}, result.enqueued_at)
    assert found == result
    with pytest.raises(ValueError, match="not finished"):
        found.return_value  # noqa: B018 - it raises


def test_a_rollback_takes_a_task_along(shop: Endpoint, alias: str) -> None:
    """That of the whole block, and that of a savepoint."""
    with captured(shop) as published:
        with suppress(ZeroDivisionError), transaction.atomic(using=alias):
            gone = place.enqueue("a")
            raise ZeroDivisionError
        assert kept(alias) == (0, 0, 0)
        with transaction.atomic(using=alias):
            place.enqueue("b")
            with suppress(ZeroDivisionError), transaction.atomic(using=alias):
                place.enqueue("c")
                raise ZeroDivisionError
    assert kept(alias) == (0, 1, 1)
    assert [each.args for each in published.bodies] == [["b"]]
    with pytest.raises(TaskResultDoesNotExist):
        place.get_result(gone.id)


def test_a_task_outside_of_a_transaction_is_committed_when_enqueue_returns(shop: Endpoint, alias: str) -> None:
    """By a transaction of its own: another connection sees it."""
    place.enqueue("a")
    assert not connections[alias].in_atomic_block
    connections[alias].close()
    assert kept(alias) == (0, 1, 1)
    assert shop.database == alias


def test_coroutines_enqueue_and_read_as_well(shop: Endpoint, alias: str) -> None:
    """In the thread that has the transaction."""

    async def enqueue() -> Any:
        return await place.aenqueue("a")

    with suppress(ZeroDivisionError), transaction.atomic(using=alias):
        async_to_sync(enqueue)()
        assert kept(alias) == (0, 1, 1)
        raise ZeroDivisionError
    assert kept(alias) == (0, 0, 0)
    with sent(shop) as runs:
        result = async_to_sync(enqueue)()
    deliver(shop, runs[0])

    async def read() -> Any:
        await result.arefresh()
        return await place.aget_result(result.id)

    assert async_to_sync(read)() == result
    assert result.status == TaskResultStatus.SUCCESSFUL


def test_a_task_and_its_result_are_committed_together(shop: Endpoint, alias: str) -> None:
    """With the worker and the times."""
    result, run = enqueued(shop, place, "a")
    deliver(shop, run)
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"name": "a", "number": 1})
    assert (result.worker_ids, result.attempts, result.errors) == ([worker_id()], 1, [])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
    assert kept(alias)[0] == 1
    result, run = enqueued(shop, place, "b")
    with suppress(ZeroDivisionError), transaction.atomic(using=alias):  # the handler's transaction, which is not committed
        deliver(shop, run)
        raise ZeroDivisionError
    result.refresh()
    assert (result.status, kept(alias)[0]) == (TaskResultStatus.READY, 1)


def test_a_message_that_is_delivered_twice_has_one_effect(shop: Endpoint, alias: str) -> None:
    """The row of the result is taken once, whatever the deduplication of the endpoint does."""
    result, run = enqueued(shop, place, "a")
    for _ in range(2):
        deliver(shop, run)
    assert kept(alias)[0] == 1
    result, run = enqueued(shop, fail, "a")
    for _ in range(2):
        deliver(shop, run)
    result.refresh()
    assert len(result.errors) == 1


def test_a_task_that_raises_has_failed_once(shop: Endpoint, alias: str) -> None:
    """Its rows are rolled back, its failure is committed, and the message is done."""
    result, run = enqueued(shop, fail, "a")
    deliver(shop, run)
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    (error,) = result.errors
    assert error.exception_class is ZeroDivisionError
    assert "no 0" in error.traceback
    assert "def fail" in error.traceback or "in fail" in error.traceback
    assert kept(alias)[0] == 0
    with pytest.raises(ValueError, match="failed"):
        result.return_value  # noqa: B018 - it raises


@pytest.mark.parametrize(("what", "kind"), [("object", TypeError), ("nan", ValueError), ("bytes", ValueError)])
def test_a_value_that_is_not_json_is_a_failure(shop: Endpoint, alias: str, what: str, kind: type[Exception]) -> None:
    """The rows are rolled back, because nobody can have the result."""
    result, run = enqueued(shop, return_what_is_no_json, what)
    deliver(shop, run)
    result.refresh()
    assert (result.status, result.errors[0].exception_class, kept(alias)[0]) == (TaskResultStatus.FAILED, kind, 0)


def test_arguments_that_are_not_json_are_refused(shop: Endpoint, alias: str) -> None:
    """When they are enqueued; the transaction can go on."""
    with transaction.atomic(using=alias):
        with pytest.raises(TypeError):
            place.enqueue(object())
        for wrong in (float("nan"), float("inf")):
            with pytest.raises((ValueError, InvalidEffect)):
                place.enqueue(wrong)
        place.enqueue("a")
    assert kept(alias) == (0, 1, 1)
    assert shop.database == alias


def test_text_that_a_database_would_not_take_as_json_comes_back(shop: Endpoint) -> None:
    """And numbers, and the order of keys."""
    value = {"b": ["\0", 1e300, 12345678901234567890, "ü"], "a": None}
    result, run = enqueued(shop, place, "a", number=value)
    deliver(shop, run)
    result.refresh()
    assert result.return_value == {"name": "a", "number": value}
    assert list(result.return_value["number"]) == ["b", "a"]


def test_a_task_sees_its_context(shop: Endpoint) -> None:
    """It runs, and counts attempts that were rolled back."""
    result, run = enqueued(shop, look)
    deliver(shop, run, attempts=2)
    assert [(result.id, TaskResultStatus.RUNNING, 3), TaskResultStatus.RUNNING] == SEEN
    result.refresh()
    assert result.worker_ids == ["unknown", "unknown", worker_id()]
    assert result.return_value == 3


def test_a_coroutine_runs_in_the_transaction(shop: Endpoint, alias: str) -> None:
    """Its rows are committed with the result, and rolled back with a failure."""
    for name, orders in (("a", 1), ("fails", 1)):
        result, run = enqueued(shop, place_async, name)
        deliver(shop, run)
        result.refresh()
        assert result.status == (TaskResultStatus.SUCCESSFUL if name == "a" else TaskResultStatus.FAILED)
        assert kept(alias)[0] == orders


def test_a_task_enqueues_another_in_its_transaction(shop: Endpoint, alias: str) -> None:
    """So a task that fails enqueues none."""
    for fails, more in ((True, 0), (False, 1)):
        _, run = enqueued(shop, enqueue_another, fails)
        before = kept(alias)
        deliver(shop, run)
        assert kept(alias) == (0, before[1] + more, before[2] + more)


@pytest.mark.parametrize("kind", ["later", "outage", "group", "rolled-back"])
def test_a_task_that_is_not_to_blame_runs_again(shop: Endpoint, alias: str, kind: str) -> None:
    """The message raises, and nothing has happened."""
    result, run = enqueued(shop, raise_this, kind)
    with pytest.raises((RetryLater, DatabaseError, ExceptionGroup)), transaction.atomic(using=alias):
        deliver(shop, run)
    connections[alias].close()  # as a worker that has lost it
    result.refresh()
    assert (result.status, result.worker_ids, result.started_at) == (TaskResultStatus.READY, [], None)
    if kind != "rolled-back":
        assert kept(alias)[0] == 0


def test_a_task_that_met_a_lock_runs_again(shop: Endpoint, alias: str) -> None:
    """Of another connection, on a row that both change."""
    if alias == "sqlite":
        pytest.skip("a writer waits before it has changed anything")
    order = Order.objects.using(alias).create(name="a")
    with other_connection(alias) as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"UPDATE django_project_order SET name = 'b' WHERE id = {order.pk}")  # noqa: S608 - of this test
        result, run = enqueued(shop, change_locked, order.pk)
        with pytest.raises(OperationalError):
            deliver(shop, run)
        result.refresh()
        assert result.status == TaskResultStatus.READY
        cursor.execute("ROLLBACK")
    deliver(shop, run)
    result.refresh()
    assert (result.status, Order.objects.using(alias).get().name) == (TaskResultStatus.SUCCESSFUL, "c")


def test_a_task_that_goes_on_after_a_deadlock_runs_again(shop: Endpoint, alias: str) -> None:
    """MariaDB rolls back the whole transaction then. What the task writes afterwards must not be committed without the rest."""
    if alias != "mariadb":
        pytest.skip("other databases refuse all statements after an error")
    one, two = (Order.objects.using(alias).create(name="a").pk for _ in range(2))
    Order.objects.using(alias).bulk_create(Order(name="more") for _ in range(100))
    change = "UPDATE django_project_order SET name = 'b' WHERE"
    with other_connection(alias) as cursor, ThreadPoolExecutor(1) as thread:
        cursor.execute("BEGIN")
        cursor.execute(f"{change} name = 'more'")  # it has changed more, so the task is the victim
        cursor.execute(f"{change} id = {two}")
        HOOKS.append(lambda: thread.submit(cursor.execute, f"{change} id = {one}"))
        result, run = enqueued(shop, swallow_deadlock, one, two)
        with pytest.raises(DatabaseError):
            deliver(shop, run)
        HOOKS.clear()
        cursor.execute("ROLLBACK")
    result.refresh()
    assert SEEN == ["deadlock"]
    assert (result.status, Order.objects.using(alias).filter(name="after").count()) == (TaskResultStatus.READY, 0)


@pytest.mark.parametrize("kind", ["rejects", "statement"])
def test_a_mistake_of_a_task_is_its_failure(shop: Endpoint, alias: str, kind: str) -> None:
    """Also a statement that can never work, which SQLite and MariaDB report as an operational error."""
    result, run = enqueued(shop, raise_this, kind)
    deliver(shop, run)
    result.refresh()
    assert (result.status, kept(alias)[0]) == (TaskResultStatus.FAILED, 0)


def test_a_constraint_that_is_checked_late_fails_the_task(shop: Endpoint, alias: str) -> None:
    """On PostgreSQL, which defers it. SQLite defers it as well, and checks it at the commit only."""
    result, run = enqueued(shop, place_line, 4711)
    if alias == "sqlite":
        with pytest.raises(DatabaseError):
            deliver(shop, run)
    else:
        deliver(shop, run)
    result.refresh()
    assert result.status == (TaskResultStatus.READY if alias == "sqlite" else TaskResultStatus.FAILED)


def test_a_task_that_is_gone_raises(shop: Endpoint) -> None:
    """A newer worker may have it. Its result stays ready."""
    result, run = enqueued(shop, place, "a")
    gone = RunTask(**{**vars(run), "task": "tests.nowhere.gone"})
    for words, wrong in (("cannot be imported", gone), ("is not a task", RunTask(**{**vars(run), "task": f"{__name__}.kept"}))):
        with pytest.raises(InvalidTask, match=words):
            deliver(shop, wrong)
    with pytest.raises(InvalidTask, match="Queue 'gone'"):
        deliver(shop, RunTask(**{**vars(run), "queue_name": "gone"}))
    result.refresh()
    assert result.status == TaskResultStatus.READY


def test_a_task_whose_row_was_deleted_does_not_run(shop: Endpoint, alias: str) -> None:
    """It becomes a dead letter, so that someone sees it."""
    _, run = enqueued(shop, place, "a")
    TaskResult.objects.using(alias).all().delete()
    with pytest.raises(Reject, match="no row of its result"):
        deliver(shop, run)
    assert kept(alias)[0] == 0


def test_a_task_may_delete_its_own_row(shop: Endpoint, alias: str) -> None:
    """Such as one that deletes all results."""
    _, run = enqueued(shop, delete_results)
    deliver(shop, run)
    assert kept(alias)[2] == 0


def test_a_task_waits_for_its_time(shop: Endpoint) -> None:
    """As a delayed message. Without time zones as well."""
    due = timezone.now() + timedelta(days=40)
    with captured(shop) as published:
        result = place.using(run_after=due).enqueue("a")
        with override_settings(USE_TZ=False, TIME_ZONE="UTC"):
            place.using(run_after=due.replace(tzinfo=None)).enqueue("a")
    assert [each.options["at"] for each in published.messages] == [due, due]
    assert place.get_result(result.id).task.run_after == due


def test_what_the_backend_cannot_do_is_refused(shop: Endpoint, alias: str) -> None:
    """Priorities, queues that are not declared, and functions that no worker would find."""
    with pytest.raises(InvalidTask, match="priority"):
        place.using(priority=1)
    with pytest.raises(InvalidTask, match="Queue 'fast'"):
        place.using(queue_name="fast")
    with pytest.raises(InvalidTask, match="keep its name"):
        under_another_name.enqueue()
    result = place.using(queue_name="slow").enqueue("a")
    assert place.get_result(result.id).task.queue_name == "slow"
    assert kept(alias) == (0, 1, 1)
    assert shop.database == alias


def test_signals_are_sent_in_the_transaction(shop: Endpoint, alias: str) -> None:
    """By the class of the backend, with what has happened."""
    told: list[tuple[str, Any, bool]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = []
    for name, signal in signals.items():

        def receive(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            assert sender is TaskBackend
            told.append((name, task_result.status, connections[alias].in_atomic_block))

        signal.connect(receive)
        receivers.append(receive)
    for work in (place, fail):
        _, run = enqueued(shop, work, "a")
        deliver(shop, run)
    ready, running = ("enqueued", TaskResultStatus.READY, True), ("started", TaskResultStatus.RUNNING, True)
    assert told == [
        *(ready, running, ("finished", TaskResultStatus.SUCCESSFUL, True)),
        *(ready, running, ("finished", TaskResultStatus.FAILED, True)),
    ]


def test_an_endpoint_has_the_handler_by_the_settings(shop: Endpoint, alias: str) -> None:
    """Without an import of the user's. An endpoint that no backend names has none."""
    assert "onceonly.RunTask" in host_of(shop).topology().commands
    other = Endpoint("other", database=alias, transport="memory://other")
    assert host_of(other).only_sends
    assert task_backends["default"].endpoint is shop


def test_old_results_are_pruned(shop: Endpoint, alias: str) -> None:
    """Those that have ended, and no others."""
    for name in ("old", "new"):
        _, run = enqueued(shop, place, name)
        deliver(shop, run)
    waiting, _ = enqueued(shop, place, "waiting")
    now = timezone.now()
    rows = TaskResult.objects.using(alias)
    rows.filter(args=["old"]).update(finished_at=now - timedelta(days=15))
    rows.filter(args=["waiting"]).update(enqueued_at=now - timedelta(days=15))
    call_command("prune_task_results", min_age_days=16, database=alias, verbosity=0)
    assert rows.count() == 3
    call_command("prune_task_results", database=alias, verbosity=0)
    assert sorted(each.args[0] for each in rows.all()) == ["new", "waiting"]
    call_command("prune_task_results", min_age_days=0, database=alias, verbosity=0)
    assert [each.id for each in rows.all()] == [waiting.id]


def test_migrations_are_not_reversed_while_tasks_wait(shop: Endpoint, alias: str) -> None:
    """And before the first table is dropped."""
    result, run = enqueued(shop, place, "a")
    with connections[alias].cursor() as cursor:
        cursor.execute("DELETE FROM onceonly_records")  # as if the message were in a broker
    with pytest.raises(CommandError, match="1 tasks that have not run"):
        call_command("migrate", "onceonly", "zero", database=alias, verbosity=0)
    deliver(shop, run)
    result.refresh()
    assert result.is_finished
    call_command("migrate", "onceonly", "zero", database=alias, verbosity=0)
    assert "onceonly_task_results" not in connections[alias].introspection.table_names()
    call_command("migrate", "onceonly", database=alias, verbosity=0)


def found_by(**settings: Any) -> list[tuple[str, str]]:
    """Return what the checks find of the backend."""
    with override_settings(**{**settings_of(), **settings}):
        return [(each.id, each.msg) for each in task_backends["default"].check()]


@pytest.mark.usefixtures("shop")
def test_settings_of_the_backend_are_checked() -> None:
    """And named when a task is enqueued."""
    assert found_by() == []
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ENDPOINT": None}, "OPTIONS needs ENDPOINT"),
        ({"ENDPOINT": "shop"}, "write module:attribute"),
        ({"ENDPOINT": "tests.nowhere:shop"}, "cannot be imported"),
        ({"ENDPOINT": f"{__name__}:PLACES"}, "is not an Endpoint"),
        ({"ENDPIONT": 1}, "'ENDPIONT', which is unknown"),
    )
    for options, words in wrong:
        settings = {"TASKS": settings_of(**options)["TASKS"]}
        ((id_, text),) = found_by(**settings)
        assert (id_, words in text) == ("onceonly.E010", True), text
        with override_settings(**settings), pytest.raises(ImproperlyConfigured, match=words):
            place.enqueue("a")
    ((id_, text),) = found_by(ONCEONLY={"ENDPOINTS": []})
    assert (id_, "is not in ONCEONLY ENDPOINTS" in text) == ("onceonly.E011", True)


@pytest.mark.usefixtures("shop")
def test_missing_apps_are_found() -> None:
    """That of the interface by our checks, and ours by its checks."""
    with override_settings(INSTALLED_APPS=["onceonly.integrations.django", "tests.django_project"]):
        assert [each.id for each in checks.check_settings()] == ["onceonly.E013" for _ in TASKS_APP]
    with override_settings(INSTALLED_APPS=TASKS_APP):
        assert [id_ for id_, _ in found_by()] == ["onceonly.E012"]
    assert [each.id for each in checks.check_settings()] == []
