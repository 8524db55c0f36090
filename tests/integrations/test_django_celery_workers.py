"""Tasks on Django's own connection, on real workers of Celery with its fixup for Django, RabbitMQ and PostgreSQL."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.integrations.celery_harness import CeleryPlace, broker_url
from tests.integrations.celery_models import Base
from tests.servers.available import POSTGRESQL, need, postgresql_database

pytestmark = pytest.mark.slow

PACKAGE = "tests.django_project"


class DjangoCeleryPlace(CeleryPlace):
    """The same with a project of Django."""

    application, tasks = f"{PACKAGE}.celery_app", f"{PACKAGE}.tasks"

    def create_tables(self) -> None:
        """Make the tables as a project does."""
        self.environment["DJANGO_SETTINGS_MODULE"] = f"{PACKAGE}.celery_settings"
        self.command("-m", "django", "migrate", "--verbosity=0")
        Base.metadata.create_all(self.engine)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the project."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode in {0, -signal.SIGKILL}, done.stdout + done.stderr
        return done


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DjangoCeleryPlace]:
    """Make a place with PostgreSQL and RabbitMQ."""
    need(POSTGRESQL)
    with postgresql_database() as store:
        found = DjangoCeleryPlace(store, broker_url("rabbitmq"), tmp_path, broker_url("redis"))
        try:
            found.create_tables()
            yield found
        finally:
            found.remove()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_take_effect_once(place: DjangoCeleryPlace, pool: str) -> None:
    """Each is sent twice under one id, and one retries."""
    with place.worker(f"--pool={pool}", "--concurrency=2"):
        copies = [place.send("place", item, task_id=f"{place.prefix}-{item}") for item in "abc" for _ in range(2)]
        retries = [place.send("fails_twice", "r", task_id=f"{place.prefix}-r") for _ in range(2)]
        wanted = [f"{task} {item}" for task in ("place", "note") for item in "abc"] + ["fails_twice r", "note r"]
        place.wait_for(*wanted)
        assert [each.get(timeout=20) for each in copies] == [f"placed {item}" for item in "abc" for _ in range(2)]
        assert [each.get(timeout=20) for each in retries] == [2, 2]
    assert place.lines() == dict.fromkeys(wanted, 1)


def test_processes_that_die_neither_lose_nor_double(place: DjangoCeleryPlace) -> None:
    """A child dies before its commit, and one after it. The plain task of the control run is doubled."""
    items = ["before-a", "after-b", "none-c"]
    wanted = [f"{task} {item}" for task in ("place", "note") for item in items]
    with place.worker():
        for item in items:
            place.send("place", item)
        place.send("plain_place", "after-d")
        place.wait_for(*wanted, "plain_note after-d")
        place.wait(lambda: place.lines()["plain_place after-d"] > 1, "the control task runs twice")
        place.wait_for()
    rows = place.lines()
    assert {each: rows[each] for each in wanted} == dict.fromkeys(wanted, 1)
    assert rows["plain_place after-d"] == 2
    assert sum(each.name.startswith("died-") for each in place.place.iterdir()) == 3


def test_a_process_that_dies_after_its_commit_loses_no_task(place: DjangoCeleryPlace) -> None:
    """A worker sends what it has left. The plain task of the control run is lost."""
    for task, item in (("note", "a"), ("plain_note", "b")):
        assert place.command("-m", f"{PACKAGE}.ordering", task, item).returncode == -signal.SIGKILL
    assert place.records() == 1
    with place.worker():
        place.send("note", "last")
        place.wait_for("note a", "note last")
    assert place.lines() == {"ordered a": 1, "ordered b": 1, "note a": 1, "note last": 1}


def test_children_open_connections_of_their_own(place: DjangoCeleryPlace) -> None:
    """Also those that follow a child that has run its number of tasks."""
    with place.worker("--concurrency=2", "--max-tasks-per-child=3"):
        results = [place.send("connections") for _ in range(12)]
        found = {tuple(each.get(timeout=25).split()) for each in results}
    assert len({process for process, _ in found}) >= 4
    assert len({backend for _, backend in found}) >= len({process for process, _ in found})


def test_a_worker_without_tables_ends_at_its_start(tmp_path: Path) -> None:
    """With the command that creates them, which another command does, too."""
    need(POSTGRESQL)
    with postgresql_database() as store:
        place = DjangoCeleryPlace(store, broker_url("rabbitmq"), tmp_path, broker_url("redis"))
        place.environment["DJANGO_SETTINGS_MODULE"] = f"{PACKAGE}.celery_settings"
        try:
            with place.worker() as process:
                assert process.wait(30) != 0
            assert "manage.py migrate" in place.log
        finally:
            place.remove()
