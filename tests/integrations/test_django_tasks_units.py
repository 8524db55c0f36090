"""Tasks as messages of an endpoint: whatever is delivered twice and wherever the process dies, a task takes effect once."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Retry, testing
from tests.django_project import set_up
from tests.integrations.django_databases import PLACES, migrated

set_up()

from django.core.management import call_command  # noqa: E402 - Django is set up before
from django.db import OperationalError, connections  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint, captured  # noqa: E402 - the same
from onceonly.integrations.django.endpoint import ENDPOINTS  # noqa: E402 - the same
from onceonly.integrations.django.models import TaskResult  # noqa: E402 - the same
from tests.django_project.models import Line, Order  # noqa: E402 - the same

try:
    from django.tasks import task
except ModuleNotFoundError:
    from django_tasks import task

SHOP: Endpoint
"""The endpoint that the settings name: that of the test."""
OUTAGES: list[Exception] = []
"""What the next runs of a task meet."""


@task()
def place(name: str) -> str:
    """Write a row, announce it, and enqueue another task."""
    Order.objects.using(SHOP.database).create(name=name)
    SHOP.publish({"order": name}, type="Placed")
    if OUTAGES:
        raise OUTAGES.pop()
    follow_up.enqueue(name)
    return name


@task()
def follow_up(name: str) -> None:
    """Do nothing: no worker of these tests gets it."""


@task()
def fail(name: str) -> None:
    """Write a row, and fail."""
    Order.objects.using(SHOP.database).create(name=name)
    raise ZeroDivisionError


@task()
def place_line() -> None:
    """Write a row whose order does not exist."""
    Line.objects.using(SHOP.database).create(order_id=4711)


@pytest.fixture(params=PLACES, scope="module")
def alias(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias."""
    with migrated(request.param, tmp_path_factory.mktemp("django"), suffix="_tasks") as found:
        yield found


@pytest.fixture
def shop(alias: str) -> Iterator[Endpoint]:
    """Make the endpoint of the settings, and leave no rows."""
    global SHOP  # noqa: PLW0603 - the settings name it
    SHOP = Endpoint("shop", database=alias, transport=f"memory://{uuid4().hex}", retry=Retry(delayed=0))
    OUTAGES.clear()
    backend = {"BACKEND": "onceonly.integrations.django.tasks.TaskBackend", "OPTIONS": {"ENDPOINT": f"{__name__}:SHOP"}}
    with override_settings(TASKS={"default": backend}):
        yield SHOP
    ENDPOINTS.discard(SHOP)
    call_command("flush", database=alias, interactive=False, verbosity=0)


def enqueued(shop: Endpoint, work: Any, *args: Any) -> tuple[Any, object]:
    """Enqueue a task. Returns its result and its message."""
    with captured(shop) as published:
        result = work.enqueue(*args)
    return result, published.bodies[0]


def deliver(shop: Endpoint, run: object, **options: Any) -> Sequence[str]:
    """Deliver the message of a task. Returns why it is a dead letter."""

    async def main() -> Sequence[str]:
        async with testing.run(shop, raise_failures=False) as opened:
            await opened.deliver(run, **options)
            return [letter.reason for letter in opened.dead_letters]

    return asyncio.run(main())


def outcome(shop: Endpoint, work: Any, *args: Any, **options: Any) -> tuple[Any, Sequence[str]]:
    """Enqueue a task, and deliver its message. Returns the result, and why its message is a dead letter."""
    result, run = enqueued(shop, work, *args)
    reasons = deliver(shop, run, **options)
    result.refresh()
    return result, reasons


def kept(alias: str) -> tuple[list[str], int]:
    """Return the names of orders, and count results, past the library."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT name FROM django_project_order ORDER BY name")
        names = [str(row[0]) for row in cursor.fetchall()]
        cursor.execute("SELECT count(*) FROM onceonly_task_results")
        return names, int(cursor.fetchone()[0])


@pytest.mark.parametrize("point", testing.CRASH_POINTS)
def test_a_crash_at_any_point_leaves_one_effect(shop: Endpoint, alias: str, point: str) -> None:
    """One row, one result and one further task, of two copies."""
    result, reasons = outcome(shop, place, "a", copies=2, crash_at=point, must_crash=False)
    assert (result.status, result.return_value, reasons) == ("SUCCESSFUL", "a", [])
    assert kept(alias) == (["a"], 2)
    assert shop.database == alias


@pytest.mark.parametrize("point", testing.CRASH_POINTS)
def test_a_crash_at_any_point_leaves_one_failure(shop: Endpoint, alias: str, point: str) -> None:
    """The failure of a task is an effect as well."""
    result, reasons = outcome(shop, fail, "a", copies=2, crash_at=point, must_crash=False)
    assert (result.status, len(result.errors), reasons) == ("FAILED", 1, [])
    assert kept(alias) == ([], 1)


def test_a_task_that_met_an_outage_runs_again(shop: Endpoint, alias: str) -> None:
    """With all that it did rolled back, and the attempts counted."""
    OUTAGES.extend([OperationalError("away"), OperationalError("away")])
    result, reasons = outcome(shop, place, "a")
    assert (result.status, result.attempts, reasons) == ("SUCCESSFUL", 3, [])
    assert kept(alias) == (["a"], 2)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM onceonly_records")  # both tasks, and the event
        assert cursor.fetchone()[0] == 3


def test_a_task_whose_row_is_gone_is_a_dead_letter(shop: Endpoint, alias: str) -> None:
    """It has no effect, and the reason says why."""
    result, run = enqueued(shop, place, "a")
    TaskResult.objects.using(alias).filter(id=result.id).delete()
    (reason,) = deliver(shop, run)
    assert "no row of its result" in reason
    assert kept(alias) == ([], 0)


def test_a_constraint_that_fails_at_the_commit(shop: Endpoint, alias: str) -> None:
    """PostgreSQL's are checked before it, and MariaDB has none. On SQLite the message fails, and the result is ready."""
    result, reasons = outcome(shop, place_line)
    if alias.startswith("sqlite"):
        assert result.status == "READY"
        assert "FOREIGN KEY" in reasons[0]
    else:
        assert (result.status, reasons) == ("FAILED", [])
