"""Tasks of a Django project, which `manage.py onceonly run` runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.integrations.test_django_project import Project
from tests.servers.available import postgresql_database

FILES = {
    "shop/endpoints.py": """
        from onceonly.integrations.django import Endpoint

        shop = Endpoint("shop", relay_after=0.1)
    """,
    "shop/tasks.py": """
        from django_tasks import task
        from shop.models import Order

        @task()
        def place(name):
            return Order.objects.create(name=name).name

        @task()
        def fail():
            Order.objects.create(name="failed")
            raise ZeroDivisionError

        @task()
        async def place_async(name):
            return (await Order.objects.acreate(name=name)).name
    """,
    "enqueue.py": """
        from datetime import timedelta

        from django.db import transaction
        from django.utils import timezone
        from onceonly.integrations.django.tasks import RunTask
        from shop.endpoints import shop
        from shop.tasks import fail, place, place_async

        with transaction.atomic():
            first = place.enqueue("a")
            fail.enqueue()
            place_async.enqueue("b")
            place.using(run_after=timezone.now() + timedelta(seconds=1)).enqueue("later")
            copy = RunTask(first.id, "shop.tasks.place", ["a"], {}, "default", "default", first.enqueued_at)
            shop.send(copy, to="shop")  # another message about the same task
        with transaction.atomic():
            place.enqueue("rolled back")
            transaction.set_rollback(True)
    """,
    "report.py": """
        import json
        from onceonly.integrations.django.models import TaskResult
        from shop.models import Order

        rows = TaskResult.objects.order_by("task", "return_value")  # ids of one millisecond have no order
        found = [(each.task, each.status, each.return_value, len(each.worker_ids)) for each in rows]
        print(json.dumps([found, sorted(each.name for each in Order.objects.all())]))
    """,
}


@pytest.fixture(params=["sqlite", "postgresql"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    """Make a project with tasks."""
    with postgresql_database() as url:
        made = Project(tmp_path, url if request.param == "postgresql" else f"sqlite:///{tmp_path}/db.sqlite3")
        for name, text in FILES.items():
            (tmp_path / name).write_text(dedent(text))
        (tmp_path / "shop" / "urls.py").write_text("urlpatterns = []\n")
        settings = tmp_path / "site_settings.py"
        backend = {
            "BACKEND": "onceonly.integrations.django.tasks.TaskBackend",
            "OPTIONS": {"ENDPOINT": "shop.endpoints:shop"},
        }
        more = f"INSTALLED_APPS += ['django_tasks']\nTASKS = {{'default': {backend!r}}}\n"
        settings.write_text(settings.read_text() + more)
        yield made


@pytest.mark.slow
def test_a_worker_runs_what_was_committed(project: Project) -> None:
    """Each task once, without an import of `shop.tasks` in the project's endpoints."""
    project.manage("migrate", "--run-syncdb")
    assert "no issues" in project.manage("check", "--database", "default")
    project.manage("shell", "-c", "exec(open('enqueue.py').read())")
    assert "tasks that have not run" in project.manage("migrate", "onceonly", "zero", fails=True)
    project.manage("onceonly", "run", "--drain")
    told = project.manage("shell", "-c", "exec(open('report.py').read())")
    rows, orders = json.loads(next(line for line in told.splitlines() if line.startswith("[")))
    assert rows == [
        ["shop.tasks.fail", "FAILED", None, 1],
        ["shop.tasks.place", "SUCCESSFUL", "a", 1],
        ["shop.tasks.place", "SUCCESSFUL", "later", 1],
        ["shop.tasks.place_async", "SUCCESSFUL", "b", 1],
    ]
    assert orders == ["a", "b", "later"]
    (status,) = json.loads(project.manage("onceonly", "status", "--json"))
    assert (status["records"], status["dead_letters"]) == (0, 0)
    assert "Deleted 4 task results" in project.manage("prune_task_results", "--min-age-days", "0")
    project.manage("migrate", "onceonly", "zero")
