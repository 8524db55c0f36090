"""Django's admin: results of tasks, which can be seen and nothing else."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.dashboard.hostile import MARK
from tests.integrations.django_admin import alias_of, client_of, installed_admin, user_with

from django.core.management import call_command  # isort: skip - Django is set up before
from django.test.utils import override_settings  # isort: skip - the same
from django.utils import timezone  # isort: skip - the same

from onceonly.integrations.django import admin_reading  # isort: skip - the same
from onceonly.integrations.django.models import TaskResultRow  # isort: skip - the same
from onceonly.integrations.django.task_results import new_result_id  # isort: skip - the same

LIST = "/admin/onceonly/taskresultrow/"
HOSTILE = f"<{MARK}>"


@pytest.fixture(scope="module")
def alias(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give a database with all tables an alias, and install the admin."""
    folder = tmp_path_factory.mktemp("admin")
    with ExitStack() as stack:
        found = stack.enter_context(alias_of("tasks_admin", f"sqlite:///{folder}/shop.db"))
        call_command("migrate", "onceonly", database=found, verbosity=0)
        stack.enter_context(installed_admin(folder))
        stack.enter_context(override_settings(ONCEONLY={"SENDING_THREAD": False, "DATABASE": found}))
        yield found


def store(alias: str, status: str = "READY", **more: Any) -> str:
    """Store a result."""
    id_ = new_result_id()
    defaults = {"task": "shop.tasks.place", "args": [], "kwargs": {}, "backend": "default", "queue_name": "default"}
    values = {**defaults, "enqueued_at": timezone.now(), "worker_ids": [], "errors": [], **more}
    TaskResultRow.objects.using(alias).create(id=id_, status=status, **values)
    return id_


def ids(client: Any, query: str = "") -> list[str]:
    """Return the ids of a list, in order."""
    response = client.get(LIST + query)
    assert response.status_code == 200
    return re.findall(r'field-id"><a [^>]*>([0-9a-f]{32})<', response.content.decode())


def test_results_are_listed_and_shown(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, by status, by path and by id. Whatever they contain is text."""
    client = client_of(user_with("view_taskresultrow"))
    errors = [{"exception_class_path": HOSTILE, "traceback": f"Traceback\n{HOSTILE}"}]
    ready = store(alias, task=f"shop.{HOSTILE}", args=[HOSTILE], kwargs={HOSTILE: 1})
    failed = store(alias, "FAILED", errors=errors, worker_ids=[HOSTILE])
    done = store(alias, "SUCCESSFUL", return_value={"number": 1}, finished_at=timezone.now())
    assert ids(client) == [done, failed, ready]
    assert ids(client, "?status=FAILED") == [failed]
    assert ids(client, "?q=tasks.place") == [done, failed]
    assert ids(client, f"?q={ready}") == [ready]
    assert ids(client, "?q=%00") == []
    for id_, words in ((ready, "kwargs"), (failed, "Traceback"), (done, "number")):
        page = client.get(f"{LIST}{id_}/change/").content.decode()
        assert words in page
        assert HOSTILE not in page
        assert '<input type="submit"' not in page
    monkeypatch.setattr("onceonly.integrations.django.admin_tasks.LISTED", 2)
    assert ids(client) == [done, failed]
    assert client.get(f"{LIST}nothing/change/").status_code == 302


def test_results_need_their_permission(alias: str) -> None:
    """And nothing can be changed with it."""
    id_ = store(alias)
    client = client_of(user_with("view_deadletter"))
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{id_}/change/").status_code == 403
    client = client_of(user_with("view_taskresultrow"))
    for path in (f"{LIST}add/", f"{LIST}{id_}/delete/"):
        assert client.get(path).status_code == 403
    assert client.post(f"{LIST}{id_}/change/", {"status": "FAILED"}).status_code == 403
    assert TaskResultRow.objects.using(alias).get(id=id_).status == "READY"
    assert admin_reading.aliases() == (alias,)
