"""Tasks that take effect once, on each database: keys, runs at the same time, locks, retries, rollbacks and follow-up tasks."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Retry
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from onceonly.model.errors import KeyReused
from tests.integrations.celery_models import Line, Unique
from tests.integrations.celery_place import Place, Tasks
from tests.servers.available import MARIADB, POSTGRESQL, mariadb_database, need, postgresql_database

PATIENCE = 30.0
"""Seconds after which what did not happen counts as lost."""


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what is committed in the store."""
    monkeypatch.setattr("onceonly.integrations.sending_thread.SendingThread.start", lambda *_, **__: None)


def database(name: str) -> AbstractContextManager[str]:
    """Make a database; gives its URL. An empty one is that of a file."""
    if name == "sqlite":
        return nullcontext("")
    need({"postgresql": POSTGRESQL, "mariadb": MARIADB}[name])
    return postgresql_database() if name == "postgresql" else mariadb_database()


@contextmanager
def opened(name: str, tmp_path: Path, **terms: Any) -> Iterator[Place]:
    """Make a place with all tables."""
    with database(name) as store:
        place = Place(tmp_path, store, **terms)
        place.create_tables()
        yield place
        place.app.close()
        place.engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Make a place on each database. A run waits up to 30 seconds for another one with its key."""
    with opened(request.param, tmp_path, wait=PATIENCE) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def hasty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Make a place on each database in which runs hardly wait for each other."""
    with opened(request.param, tmp_path, wait=0.1) as found:
        yield found


@pytest.fixture(params=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Make a place on each database that locks rows, in which runs hardly wait for the key."""
    with opened(request.param, tmp_path, wait=0.1) as found:
        yield found


class Holding:
    """A task that writes a row, sends another task, and stays in its transaction until it may go."""

    def __init__(self, place: Place) -> None:
        self.tasks, self.runs = Tasks(place), 0
        self.is_inside, self.may_go = threading.Event(), threading.Event()
        self.error: Exception | None = None

        @place.task(name="tests.holds")
        def holds(item: str, session: Session) -> str:
            self.runs += 1
            session.add(Line(task="holds", item=item))
            self.tasks.note.delay(item)
            session.flush()
            self.is_inside.set()
            assert self.may_go.wait(PATIENCE)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return f"held {item}"

        self.task = holds


def states(outcomes: list[Any]) -> list[str]:
    """Return how runs have ended."""
    return sorted("SUCCESS" if each.info is None else each.info.state for each in outcomes)


def at_once(*runs: Callable[[], Any]) -> list[Any]:
    """Run these in threads of their own, as the pool of a worker does."""
    with ThreadPoolExecutor(len(runs)) as threads:
        return [each.result(PATIENCE * 2) for each in [threads.submit(run) for run in runs]]


def test_a_key_is_taken_once(place: Place) -> None:
    """Rows, follow-up tasks and value are one commit, and a known id returns the value."""
    tasks = Tasks(place)
    assert [place.value(tasks.do, "ä") for _ in range(3)] == ["done ä"] * 3
    assert (tasks.runs, place.lines(), place.tasks()) == (["ä"], ["ä"], [("note", ["ä"])])
    assert place.value(tasks.do, "ä", id="t2") == "done ä"
    assert place.lines() == ["ä", "ä"]


def test_ids_that_differ_in_case_or_a_blank_are_different_keys(place: Place) -> None:
    """As they are for Celery, whatever the collation of the database."""
    tasks = Tasks(place)
    for id_ in ("t", "T", "t ", "ť"):
        assert place.value(tasks.do, id_, id=id_) == f"done {id_}"
    assert len(place.lines()) == 4


def test_the_same_key_with_other_arguments_is_refused(place: Place) -> None:
    """A key that is made from the arguments."""

    @place.task(key=lambda item, **_: item)
    def keyed(item: str, amount: int, session: Session) -> int:
        session.add(Line(task="keyed", item=item))
        return amount

    assert [place.value(keyed, "a", 1, id=each) for each in ("t1", "t2")] == [1, 1]
    assert isinstance(place.failure(keyed, "a", 2, id="t3"), KeyReused)
    assert place.lines() == ["a"]


def test_many_runs_at_once_are_one(place: Place) -> None:
    """All copies return the value of the one that was committed."""
    tasks = Tasks(place)
    place.app.finalize()
    start = threading.Barrier(4)

    def run() -> Any:
        start.wait(PATIENCE)
        return place.value(tasks.do, "a")

    assert at_once(*[run] * 4) == ["done a"] * 4
    assert (tasks.runs, place.lines(), place.tasks()) == (["a"], ["a"], [("note", ["a"])])


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_second_run_waits_for_the_first(place: Place, error: Exception | None) -> None:
    """It returns the value, or does the work if the first one was rolled back."""
    holding = Holding(place)
    holding.error = error
    place.app.finalize()

    def second() -> Any:
        assert holding.is_inside.wait(PATIENCE)
        threading.Timer(0.3, holding.may_go.set).start()
        return place.run(holding.task, "a")

    outcomes = at_once(lambda: place.run(holding.task, "a"), second)
    assert states(outcomes) == (["SUCCESS"] * 2 if error is None else ["FAILURE", "SUCCESS"])
    assert outcomes[1].retval == "held a"
    assert (holding.runs, place.lines(), place.tasks()) == (1 if error is None else 2, ["a"], [("note", ["a"])])


def test_a_run_that_has_waited_too_long_is_delivered_again(hasty: Place) -> None:
    """Then it is known. Celery does not count it as a retry."""
    holding = Holding(hasty)
    hasty.app.finalize()

    def second() -> Any:
        assert holding.is_inside.wait(PATIENCE)
        try:
            return hasty.run(holding.task, "a")
        finally:
            holding.may_go.set()

    first, rejected = at_once(lambda: hasty.run(holding.task, "a"), second)
    assert (first.info, rejected.info.state, rejected.info.retval.requeue) == (None, "REJECTED", True)
    assert hasty.value(holding.task, "a") == "held a"
    assert (holding.runs, hasty.lines(), hasty.tasks()) == (1, ["a"], [("note", ["a"])])


def test_what_the_database_refuses_leaves_nothing_and_frees_the_key(place: Place) -> None:
    """The row that was there stays."""
    tasks = Tasks(place)

    @place.task
    def inserts(item: str, session: Session) -> str:
        session.add(Line(task="inserts", item=item))
        tasks.note.delay(item)
        session.add(Unique(item=item))
        return item

    with place.sessions.begin() as session:
        session.add(Unique(item="a"))
    assert isinstance(place.failure(inserts, "a"), IntegrityError)
    assert place.lines() == place.tasks() == []
    with place.sessions.begin() as session:
        session.delete(session.get_one(Unique, "a"))
    assert [place.value(inserts, "a") for _ in range(2)] == ["a", "a"]
    assert (place.lines(), place.tasks()) == (["a"], [("note", ["a"])])


def test_a_retry_is_stored_when_the_work_is_undone(place: Place) -> None:
    """In a transaction of its own. The run that succeeds is the only one that has an effect."""
    tasks = Tasks(place)

    @place.task(bind=True, max_retries=1)
    def retries(self: Any, item: str, session: Session) -> int:
        session.add(Line(task="retries", item=item))
        tasks.note.delay(item)
        session.flush()
        if not self.request.retries:
            raise self.retry(countdown=5)
        return int(self.request.retries)

    outcome = place.run(retries, "a")
    assert isinstance(outcome.info.retval, Retry)
    assert [each.headers["retries"] for each in place.stored()] == [1]
    assert place.lines() == []
    assert [place.value(retries, "a", retries=1) for _ in range(2)] == [1, 1]
    assert place.lines() == ["a"]
    assert [name for name, _ in place.tasks()].count("note") == 1


def test_a_task_waits_for_rows_as_long_as_any_other(server: Place) -> None:
    """The time for which a run waits for its key ends with the key."""
    with server.engine.connect() as other:
        other.execute(text("INSERT INTO uniques (item) VALUES ('a')"))
        threading.Timer(2.5, other.rollback).start()

        @server.task
        def inserts(session: Session) -> str:
            session.add(Line(task="inserts", item="a"))
            session.add(Unique(item="a"))
            return "inserted"

        assert server.value(inserts) == "inserted"
    assert server.lines() == ["a"]


def test_a_row_that_stays_locked_has_the_task_delivered_again(server: Place) -> None:
    """With the lock time-out of the database, which the task has set. On MariaDB it undoes one statement only."""
    tasks = Tasks(server)
    limit = "SET LOCAL lock_timeout = '100ms'"
    if server.engine.dialect.name == "mysql":
        limit = "SET innodb_lock_wait_timeout = 1"

    @server.task
    def inserts(session: Session) -> str:
        session.add(Line(task="inserts", item="a"))
        tasks.note.delay("a")
        session.flush()
        session.execute(text(limit))
        session.execute(text("INSERT INTO uniques (item) VALUES ('a')"))
        return "inserted"

    with server.engine.connect() as other:
        other.execute(text("INSERT INTO uniques (item) VALUES ('a')"))
        assert server.run(inserts).info.state == "REJECTED"
        assert server.lines() == server.tasks() == []
        other.rollback()
    assert server.value(inserts) == "inserted"
    assert (server.lines(), server.tasks()) == (["a"], [("note", ["a"])])


def test_tasks_that_lock_each_other_are_not_both_undone(server: Place) -> None:
    """The database ends one of them, which is delivered again."""
    tasks = Tasks(server)
    both = threading.Barrier(2)
    first_runs = {"ab", "ba"}

    @server.task
    def updates(order: str, session: Session) -> str:
        session.add(Line(task="updates", item=order))
        tasks.note.delay(order)
        session.flush()
        for number, item in enumerate(order):
            session.execute(text("UPDATE uniques SET item = item WHERE item = :item"), {"item": item})
            session.execute(text("SELECT item FROM uniques WHERE item = :item FOR UPDATE"), {"item": item})
            if number == 0 and order in first_runs:
                both.wait(PATIENCE)
                first_runs.discard(order)
        return order

    with server.sessions.begin() as session:
        session.add_all([Unique(item=each) for each in "ab"])
    server.app.finalize()
    outcomes = at_once(*[lambda order=order: server.run(updates, order, id=order) for order in ("ab", "ba")])  # type: ignore[misc]
    assert states(outcomes) == ["REJECTED", "SUCCESS"]
    assert len(server.lines()) == len(server.tasks()) == 1
    assert [server.value(updates, order, id=order) for order in ("ab", "ba")] == ["ab", "ba"]
    assert sorted(server.lines()) == ["ab", "ba"]
    assert sorted(server.tasks()) == [("note", ["ab"]), ("note", ["ba"])]
