"""Django's admin: results of tasks, which can be seen and nothing else."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.dashboard.hostile import MARK
from tests.integrations.django_admin import alias_of, client_of, installed_admin, store_result, user_with

from django.core.management import call_command  # isort: skip - Django is set up before
from django.test.utils import override_settings  # isort: skip - the same
from django.utils import timezone  # isort: skip - the same

from onceonly.integrations.django import admin_reading  # isort: skip - the same
from onceonly.integrations.django.models import TaskResult  # isort: skip - the same

LIST = "/admin/onceonly/taskresult/"
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


def ids(client: Any, query: str = "") -> list[str]:
    """Return the ids of a list, in order."""
    response = client.get(LIST + query)
    assert response.status_code == 200
    return re.findall(r'href="/admin/onceonly/taskresult/([0-9a-f]{32})/', response.content.decode())


def test_results_are_listed_and_shown(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, by status, by path and by id. Whatever they contain is text."""
    client = client_of(user_with("view_taskresult"))
    errors = [{"exception_class_path": HOSTILE, "traceback": f"Traceback\n{HOSTILE}"}]
    ready = store_result(alias, task=f"shop.{HOSTILE}", args=[HOSTILE], kwargs={HOSTILE: 1})
    failed = store_result(alias, "FAILED", errors=errors, worker_ids=[HOSTILE])
    done = store_result(alias, "SUCCESSFUL", return_value={"number": 1}, finished_at=timezone.now())
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
    id_ = store_result(alias)
    client = client_of(user_with("view_deadletter"))
    assert client.get(LIST).status_code == 403
    assert client.get(f"{LIST}{id_}/change/").status_code == 403
    client = client_of(user_with("view_taskresult"))
    for path in (f"{LIST}add/", f"{LIST}{id_}/delete/"):
        assert client.get(path).status_code == 403
    assert client.post(f"{LIST}{id_}/change/", {"status": "FAILED"}).status_code == 403
    assert TaskResult.objects.using(alias).get(id=id_).status == "READY"
    assert admin_reading.aliases() == (alias,)
