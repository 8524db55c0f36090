"""Tasks that take effect once, on real workers of Celery, with RabbitMQ and Redis, PostgreSQL and SQLite."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy import text

from onceonly.assembly import open_transport, temporary_transport
from onceonly.ports.transport import Topology
from tests.integrations.celery_harness import MODULE, CeleryPlace, opened_place
from tests.servers.available import POSTGRESQL, RABBITMQ, mariadb_database, need, postgresql_database

pytestmark = pytest.mark.slow

SLOW_FUNCTION = "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(5); RETURN NULL; END' LANGUAGE plpgsql"
SLOW_COMMIT = (
    "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON lines DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
    "WHEN (NEW.task = 'place' AND NEW.item = 'slow') EXECUTE FUNCTION slow()"
)
"""Makes COMMIT take five seconds."""
OTHER_CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


@pytest.fixture(params=["rabbitmq", pytest.param("redis", marks=pytest.mark.repeated)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CeleryPlace]:
    """Make a place with PostgreSQL, and this broker."""
    need(POSTGRESQL)
    with postgresql_database() as store, opened_place(store, request.param, tmp_path) as found:
        yield found


def test_a_task_and_its_follow_up_happen_once(place: CeleryPlace) -> None:
    """Every task is sent twice under one id."""
    with place.worker():
        results: list[Any] = []
        for item in "abc":
            results += [place.send("place", item, task_id=f"{place.prefix}-{item}") for _ in range(2)]
        place.wait_for(*(f"{task} {item}" for task in ("place", "note") for item in "abc"))
        values = [each.get(timeout=20) for each in results]
    assert place.lines() == {f"{task} {item}": 1 for task in ("place", "note") for item in "abc"}
    assert values == [f"placed {item}" for item in "abc" for _ in range(2)]


def test_processes_that_die_neither_lose_nor_double(place: CeleryPlace) -> None:
    """A child dies before its commit, and one after it. The plain task of the control run is doubled."""
    items = ["before-a", "after-b", "none-c"]
    with place.worker(CELERY_TEST_RELAY_AFTER="0.5"):
        for item in items:
            place.send("place", item)
        place.send("plain_and_die", "d")
        wanted = [f"{task} {item}" for task in ("place", "note") for item in items]
        place.wait_for(*wanted, "plain_note d")
        place.wait(lambda: place.lines()["plain_and_die d"] > 1, "the control task runs twice")
        place.wait_for()
    rows = place.lines()
    assert {each: rows[each] for each in wanted} == dict.fromkeys(wanted, 1)
    assert rows["plain_and_die d"] == 2
    assert sum(each.name.startswith("died-") for each in place.place.iterdir()) == 3


def test_the_canvas_goes_on_once(place: CeleryPlace) -> None:
    """Chain, group, chord and link, sent by a task and by a client, each under two copies."""
    client = place.client
    name = f"{MODULE}."
    with place.worker():
        for _ in range(2):
            place.send("sends_canvas", "t", task_id=f"{place.prefix}-t")
            parts = [client.signature(f"{name}note", (f"p{each}",), task_id=f"{place.prefix}-p{each}") for each in range(2)]
            chord(parts, client.signature(f"{name}collected", task_id=f"{place.prefix}-body")).apply_async(
                task_id=f"{place.prefix}-group"
            )
        wanted = [
            "sends_canvas t", "place t-chain", "note t-chain", "joined placed t-chain t-next", "note t-g1", "note t-g2",
            "note t-c1", "note t-c2", "collected noted t-c1,noted t-c2", "note t-linked", "joined noted t-linked t-link",
            "note p0", "note p1", "collected noted p0,noted p1",
        ]  # fmt: skip
        place.wait_for(*wanted)
    assert place.lines() == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("point", ["uncounted", "before", "after"])
def test_a_process_of_a_chord_that_dies_when_its_result_is_stored(place: CeleryPlace, point: str) -> None:
    """Its part is delivered again, until the claim to send the body has expired. A body that is sent twice runs once."""
    client, name = place.client, f"{MODULE}."
    with place.worker(CELERY_TEST_CHORD=point):
        parts = [client.signature(f"{name}note", (f"p{each}",)) for each in range(3)]
        body = chord(parts, client.signature(f"{name}collected")).apply_async()
        received = f"celery_app.collected[{body.id}] received"
        assert sorted(body.get(timeout=40)) == ["noted p0", "noted p1", "noted p2"]
        place.wait(lambda: place.log.count(received) == (2 if point == "after" else 1), "the body was sent")
        place.wait_for("collected noted p0,noted p1,noted p2")
    assert (place.place / f"died-chord-{point}").exists()
    assert place.lines() == {"collected noted p0,noted p1,noted p2": 1} | {f"note p{each}": 1 for each in range(3)}
    has_waited = "another process is about to start the body of this task's chord" in place.log
    assert has_waited == (point != "uncounted")


def test_retries_are_counted_once(place: CeleryPlace) -> None:
    """A task that succeeds at its third run, and one that never does."""
    with place.worker():
        copies = [place.send("fails_twice", "a", task_id=f"{place.prefix}-r") for _ in range(2)]
        lost = place.send("always_fails", "b")
        assert [each.get(timeout=20) for each in copies] == [2, 2]
        with pytest.raises(Exception, match="b"):
            lost.get(timeout=20)
        place.wait_for("fails_twice a", "note a")
    assert place.lines() == {"fails_twice a": 1, "note a": 1}


def test_a_copy_waits_and_is_known(place: CeleryPlace) -> None:
    """As with Redis after its visibility time-out: one task runs at two workers at once, for longer than a copy waits."""
    with place.worker():
        results = [place.send("waits", "a", 3.0, task_id=f"{place.prefix}-w") for _ in range(2)]
        assert [each.get(timeout=25) for each in results] == ["a", "a"]
        place.wait_for("waits a")
    assert place.lines() == {"waits a": 1}
    assert "task not committed, delivered again" in place.log


def test_a_task_that_runs_longer_than_the_visibility_time_out_of_redis_takes_effect_once(tmp_path: Path) -> None:
    """Redis delivers it to the other worker meanwhile, which waits for the key, and then has the value."""
    need(POSTGRESQL)
    with postgresql_database() as store, opened_place(store, "redis", tmp_path) as place:
        one = place.worker("--concurrency=1", CELERY_TEST_VISIBILITY="2")
        other = place.worker("--concurrency=1", CELERY_TEST_VISIBILITY="2")
        with one, other:
            result = place.send("waits", "a", 8.0)
            received = f"celery_app.waits[{result.id}] received"
            assert result.get(timeout=30) == "a"
            place.wait_for("waits a")
            place.wait(lambda: place.log.count(f"celery_app.waits[{result.id}] succeeded") >= 2, "the copy is known")
        assert place.log.count(received) >= 2
        assert place.lines() == {"waits a": 1}


def test_the_events_of_celery_are_sent(place: CeleryPlace) -> None:
    """Those of tasks and of their follow-up tasks, of which the one of sending is committed with its task."""
    with place.events() as events, place.worker("--concurrency=1", "-E", CELERY_TEST_EVENTS="1"):
        result = place.send("place", "a")
        place.wait_for("place a", "note a")
        place.wait(lambda: [each["type"] for each in events].count("task-succeeded") == 2, "both have ended")
    of: dict[str, set[str]] = {}
    for each in events:
        if "uuid" in each:
            of.setdefault(each["uuid"], set()).add(each["type"])
    steps = {"task-received", "task-started", "task-succeeded"}
    follow_up = of[next(iter(of.keys() - {result.id}))]
    assert steps <= of[result.id]
    assert follow_up == {"task-sent", *steps}


def test_a_worker_with_greenlets_ends_at_its_start(tmp_path: Path) -> None:
    """With the pools that can be used."""
    need(POSTGRESQL)
    with postgresql_database() as store, opened_place(store, "redis", tmp_path) as place:
        with place.worker("--pool=gevent") as process:
            assert process.wait(30) != 0
        assert "Use --pool=prefork, threads or solo" in place.log


def test_children_open_connections_of_their_own(place: CeleryPlace) -> None:
    """Also those that follow a child that has run its number of tasks."""
    with place.worker("--concurrency=2", "--max-tasks-per-child=3"):
        results = [place.send("connections") for _ in range(12)]
        found = {tuple(each.get(timeout=25).split()) for each in results}
        place.send("place", "x")
        place.wait_for("place x", "note x")
    processes = {process for process, _ in found}
    assert len(processes) >= 4
    assert len({backend for _, backend in found}) >= len(processes)


@pytest.mark.parametrize(
    ("pool", "most"),
    [
        ("prefork", 3 * 3 + 3),
        pytest.param("threads", 3 + 3, marks=pytest.mark.repeated),
        pytest.param("solo", 1 + 3, marks=pytest.mark.repeated),
    ],
)
def test_a_worker_has_the_connections_that_the_guide_counts(place: CeleryPlace, pool: str, most: int) -> None:
    """To PostgreSQL, in each sample while tasks run and send. Sessions that are used have one each."""
    seen = 0

    def count() -> None:
        nonlocal seen
        with place.engine.connect() as connection:
            seen = max(seen, connection.execute(text(OTHER_CONNECTIONS)).scalar_one())

    items = [f"i{number}" for number in range(60)]
    wanted = {f"{task} {item}" for task in ("place", "note") for item in items}
    with place.worker(f"--pool={pool}", "--concurrency=3"):
        for item in items:
            place.send("place", item)
        place.wait(lambda: count() or wanted == set(place.lines()), "all tasks are done")
        place.wait_for()
        count()
    assert 2 <= seen <= most


@pytest.mark.parametrize("pool", ["threads", pytest.param("solo", marks=pytest.mark.repeated)])
def test_other_pools(place: CeleryPlace, pool: str) -> None:
    """Tasks in threads of one process, and in its main thread."""
    with place.worker(f"--pool={pool}", "--concurrency=4"):
        for item in "abcd":
            for _ in range(2):
                place.send("place", item, task_id=f"{place.prefix}-{item}")
        place.wait_for(*(f"{task} {item}" for task in ("place", "note") for item in "abcd"))
    assert "Traceback" not in place.log
    assert place.lines() == {f"{task} {item}": 1 for task in ("place", "note") for item in "abcd"}


def test_a_worker_without_tables_ends_at_its_start(tmp_path: Path) -> None:
    """With the command that creates them."""
    need(POSTGRESQL)
    with postgresql_database() as store, opened_place(store, "redis", tmp_path, has_tables=False) as place:
        with place.worker() as process:
            assert process.wait(30) != 0
        assert "onceonly schema create" in place.log


def test_time_limits(place: CeleryPlace) -> None:
    """A soft limit undoes the task. A hard one kills its process, and Celery reports the failure."""
    with place.worker():
        soft = place.send("waits", "soft", 20.0, soft_time_limit=1)
        hard = place.send("waits", "hard", 20.0, time_limit=1)
        for each, name in ((soft, "SoftTimeLimitExceeded"), (hard, "TimeLimitExceeded")):
            with pytest.raises(Exception, match=name):
                each.get(timeout=25)
        place.send("place", "x")
        place.wait_for("place x", "note x")
    assert place.lines() == {"place x": 1, "note x": 1}


def test_a_soft_limit_amid_a_statement_and_amid_the_commit(place: CeleryPlace) -> None:
    """A statement is undone, and the failure is that of the limit. A COMMIT has an open outcome, which the next run finds."""
    with place.engine.begin() as connection:
        connection.execute(text(SLOW_FUNCTION))
        connection.execute(text(SLOW_COMMIT))
    with place.worker("--concurrency=1"):
        statement = place.send("sleeps", "a", 20.0, soft_time_limit=2)
        commit = place.send("place", "slow", soft_time_limit=2)
        with pytest.raises(SoftTimeLimitExceeded):
            statement.get(timeout=25)
        assert commit.get(timeout=25) == "placed slow"
        place.wait_for("place slow", "note slow")
        place.send("place", "b")
        place.wait_for("place b", "note b")
    assert place.lines() == {f"{task} {item}": 1 for task in ("place", "note") for item in ("slow", "b")}
    assert "task not committed, delivered again" in place.log


@pytest.mark.parametrize("signal", [pytest.param("SIGTERM", marks=pytest.mark.repeated), "SIGKILL"])
def test_tasks_that_are_revoked_before_their_commit_leave_nothing(place: CeleryPlace, signal: str) -> None:
    """One has not started, one is terminated while it runs. A worker that knows nothing of it has their keys."""
    first, second = f"{place.prefix}-1", f"{place.prefix}-2"
    link = place.client.signature(f"{MODULE}.joined", ("link",))
    items = {first: "uncommitted-a", second: "b"}
    with place.worker("--concurrency=1", CELERY_TEST_CONTROL="1"):
        results = [place.send("place", items[first], task_id=first, link=link)]
        place.wait((place.place / "stays-uncommitted-a").exists, "the first one runs")
        results.append(place.send("place", items[second], task_id=second, link=link))
        place.revoke(second)
        place.revoke(first, terminate=True, signal=signal)
        place.send("place", "c")
        place.wait_for("place c", "note c")
        place.wait(lambda: [each.state for each in results] == ["REVOKED"] * 2, "both are reported as revoked")
    assert place.lines() == {"place c": 1, "note c": 1}
    with place.worker("--concurrency=1"):
        for id_, item in [*items.items()] * 2:
            place.send("place", item, task_id=id_, link=link)
        place.wait(lambda: {place.client.AsyncResult(each).state for each in items} == {"SUCCESS"}, "they are done")
        wanted = [line for item in items.values() for line in (f"place {item}", f"note {item}", f"joined placed {item} link")]
        place.wait_for(*wanted)
    assert place.lines() == dict.fromkeys(["place c", "note c", *wanted], 1)


@pytest.mark.parametrize("signal", [pytest.param("SIGTERM", marks=pytest.mark.repeated), "SIGKILL"])
def test_a_task_that_is_revoked_after_its_commit_is_done(place: CeleryPlace, signal: str) -> None:
    """It is reported as revoked, but another process sends its follow-up tasks, and its key is known."""
    task_id = f"{place.prefix}-1"
    link = place.client.signature(f"{MODULE}.joined", ("link",))
    wanted = ["place committed-a", "note committed-a", "joined placed committed-a link"]
    with place.worker("--concurrency=1", CELERY_TEST_CONTROL="1"):
        result = place.send("place", "committed-a", task_id=task_id, link=link)
        place.wait((place.place / "stays-committed-a").exists, "it is committed")
        place.revoke(task_id, terminate=True, signal=signal)
        place.wait_for(*wanted)
        assert result.state == "REVOKED"
    with place.worker("--concurrency=1"):
        place.send("place", "committed-a", task_id=task_id, link=link)
        place.wait(lambda: place.client.AsyncResult(task_id).state == "SUCCESS", "it is known")
        assert place.client.AsyncResult(task_id).result == "placed committed-a"
        place.wait_for(*wanted)
    assert place.lines() == dict.fromkeys(wanted, 1)


@pytest.mark.parametrize("database", ["sqlite", "mariadb"])
def test_other_databases(tmp_path: Path, database: str) -> None:
    """Processes share a file, which has one writer at a time, or a MariaDB. One dies before its commit, one after it."""
    file = nullcontext(f"sqlite:///{tmp_path}/shop.db")
    with mariadb_database() if database == "mariadb" else file as store, opened_place(store, "redis", tmp_path) as place:
        with place.worker("--concurrency=3"):
            items = ["before-x", "after-y", *(f"i{number}" for number in range(8))]
            results = [place.send("place", item, task_id=f"{place.prefix}-{item}") for item in items for _ in range(2)]
            wanted = [f"{task} {item}" for task in ("place", "note") for item in items]
            place.wait_for(*wanted)
            assert [each.get(timeout=25) for each in results] == [f"placed {item}" for item in items for _ in range(2)]
            retried = [place.send("fails_twice", "a", task_id=f"{place.prefix}-r") for _ in range(2)]
            assert [each.get(timeout=25) for each in retried] == [2, 2]
            waiting = [place.send("waits", "w", 3.0, task_id=f"{place.prefix}-w") for _ in range(2)]
            assert [each.get(timeout=25) for each in waiting] == ["w", "w"]
            place.wait_for("fails_twice a", "note a", "waits w")
        assert place.lines() == dict.fromkeys([*wanted, "fails_twice a", "note a", "waits w"], 1)


async def test_events_go_to_other_services_by_the_endpoints_transport(place: CeleryPlace) -> None:
    """Next to the tasks, which go to Celery's broker."""
    transport = f"{need(RABBITMQ)}?prefix={place.prefix}-"
    topology = Topology(endpoint="mail", events=("Announced",))
    async with temporary_transport(transport, [topology]), open_transport(transport, "mail") as mail:
        await mail.declare([topology])
        with place.worker(CELERY_TEST_TRANSPORT=transport):
            for item in "ab":
                for _ in range(2):
                    place.send("announces", item, task_id=f"{place.prefix}-{item}")
            await asyncio.to_thread(place.wait_for, *(f"{task} {item}" for task in ("announces", "note") for item in "ab"))
        arrived = [*await mail.receive(10, 5.0), *await mail.receive(10, 0.2)]
        await mail.ack(arrived)
    assert sorted(each.body for each in arrived) == [b'{"item":"a"}', b'{"item":"b"}']


def test_two_beats_have_one_effect(place: CeleryPlace) -> None:
    """Both send each tick."""

    def sent() -> list[int]:
        return [(place.place / f"beat-{name}.log").read_text().count("sent. id->") for name in "ab"]

    with place.worker(), place.beat("a") as first, place.beat("b") as second:
        place.wait(lambda: min(sent()) >= 4, "each sends four ticks")
        for each in (first, second):
            each.terminate()
            each.wait(20)
        place.wait(lambda: place.log.count("] succeeded") >= sum(sent()), "all have run")
    assert set(place.lines().values()) == {1}
    assert max(sent()) <= len(place.lines()) < sum(sent())
