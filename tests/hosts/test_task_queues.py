"""The programs of docs/how-to/task-queues.md, with the workers of their libraries: a task that runs twice has its effects once.

Its follow-up task is run by the library's own worker.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple
from uuid import uuid4

import aio_pika
import dramatiq
import pytest
from arq import create_pool
from arq.connections import RedisSettings
from arq.constants import job_key_prefix, result_key_prefix
from arq.worker import Worker
from dramatiq.common import current_millis, dq_name, xq_name
from procrastinate import PsycopgConnector
from sqlalchemy import create_engine, make_url, text
from taskiq.api import run_receiver_task

from tests import ROOT
from tests.docs.test_documentation import snippet
from tests.servers.available import POSTGRESQL, RABBITMQ, REDIS, need, postgresql_database

PAGE = ROOT / "docs" / "how-to" / "task-queues.md"
PATIENCE = 30.0
"""Seconds after which what did not happen counts as lost."""


class Place(NamedTuple):
    """A database of this test, and what loads a program of the page onto it. `tasks` is the name of its queue."""

    database: str
    tasks: str
    load: Callable[[str], ModuleType]

    def orders(self) -> list[str]:
        """Return the orders in the database."""
        engine = create_engine(make_url(self.database).set(drivername="postgresql+psycopg"))
        with engine.connect() as connection:
            found = [str(each) for each in connection.execute(text("SELECT order_id FROM orders")).scalars()]
        engine.dispose()
        return found


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Make a database with the table of the page."""
    need(POSTGRESQL)
    with postgresql_database() as database:
        tasks = f"hosts-{uuid4().hex[:8]}"
        found = make_url(database)

        def url(driver: str) -> str:
            return found.set(drivername=driver).render_as_string(hide_password=False)

        names = {
            "postgresql+psycopg://localhost/shop": url("postgresql+psycopg"),
            "postgresql+asyncpg://localhost/shop": url("postgresql+asyncpg"),
            "postgresql://localhost/shop": url("postgresql"),
            "amqp://localhost": RABBITMQ.url,
            "redis://localhost": REDIS.url,
            "shop-tasks": tasks,
        }

        def load(name: str) -> ModuleType:
            program = snippet(PAGE, f"# {name}.py\n")
            for old, new in names.items():
                program = program.replace(old, new)
            made = ModuleType(name)
            monkeypatch.setitem(sys.modules, name, made)
            exec(compile(program, name, "exec"), made.__dict__)  # noqa: S102 - the page's program
            return made

        models = load("models")
        engine = create_engine(url("postgresql+psycopg"))
        models.Base.metadata.create_all(engine)
        engine.dispose()
        command = (sys.executable, "-m", "onceonly", "schema", "create", database)
        subprocess.run(command, check=True, capture_output=True)
        yield Place(database, tasks, load)


async def until(capsys: pytest.CaptureFixture[str], seen: list[str]) -> list[str]:
    """Return what is printed, when something is."""
    async with asyncio.timeout(PATIENCE):
        while not seen:
            seen += capsys.readouterr().out.split("\n")[:-1]
            await asyncio.sleep(0.02)
    return seen


async def remove(*queues: str, exchange: str = "") -> None:
    """Delete queues of RabbitMQ."""
    async with await aio_pika.connect(RABBITMQ.url) as connection:
        channel = await connection.channel()
        for each in queues:
            await channel.queue_delete(each)
        if exchange:
            await channel.exchange_delete(exchange)


def test_dramatiq(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The second message has the id of the first, as a redelivery has. One worker thread runs them in order."""
    need(RABBITMQ)
    program = place.load("dramatiq_tasks")
    worker = dramatiq.Worker(program.broker, worker_threads=1)
    try:
        message = program.place_order.message("A-1")
        for _ in range(2):
            program.broker.enqueue(message)
        worker.start()
        assert asyncio.run(until(capsys, [])) == ["invoice of A-1"]
        program.broker.join(place.tasks)
        worker.join()
    finally:
        worker.stop()
        program.broker.close()
        program.sessions.kw["bind"].dispose()
        asyncio.run(remove(place.tasks, dq_name(place.tasks), xq_name(place.tasks)))
    assert capsys.readouterr().out == ""
    assert place.orders() == ["A-1"]


def test_dramatiq_delays_a_follow_up_task(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """It waits in Dramatiq's own queue for delayed messages: RabbitMQ does not delay what is sent to a queue."""
    need(RABBITMQ)
    program, delays = place.load("dramatiq_tasks"), place.load("dramatiq_delays")
    due: list[int] = []

    @dramatiq.actor(broker=program.broker, queue_name=place.tasks)
    def place_later(order_id: str) -> None:
        with program.sessions.begin() as session:
            entry = program.shop.enlist(session, key=order_id)
            due.append(current_millis() + 500)
            delays.send_later(entry, program.print_invoice.message(order_id), 500)

    worker = dramatiq.Worker(program.broker, worker_threads=1)
    try:
        place_later.send("A-1")
        worker.start()
        assert asyncio.run(until(capsys, [])) == ["invoice of A-1"]
        assert current_millis() >= due[0]
    finally:
        worker.stop()
        program.broker.close()
        program.sessions.kw["bind"].dispose()
        asyncio.run(remove(place.tasks, dq_name(place.tasks), xq_name(place.tasks)))


async def test_taskiq(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The second task has the id of the first, as a redelivery has."""
    need(RABBITMQ)
    program = place.load("taskiq_tasks")
    await program.broker.startup()
    try:
        for order in ("A-1", "A-1", "A-2"):
            await program.place_order.kicker().with_task_id(order).kiq(order)
        program.broker.is_worker_process = True
        work = asyncio.create_task(run_receiver_task(program.broker, run_startup=True, max_async_tasks=1))
        seen: list[str] = []
        while "invoice of A-2" not in seen:  # the worker runs one task at a time, in their order
            seen += await until(capsys, [])
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    finally:
        await program.broker.shutdown()
        await remove(place.tasks)
        await program.sessions.kw["bind"].dispose()
    assert sorted(seen) == ["invoice of A-1", "invoice of A-2"]
    assert sorted(place.orders()) == ["A-1", "A-2"]


@pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")  # by arq
async def test_arq(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The job runs again when its result is gone, with the same id."""
    settings = RedisSettings.from_dsn(need(REDIS))
    program = place.load("arq_tasks")
    redis = await create_pool(settings, default_queue_name=place.tasks)
    chosen: dict[str, Any] = {name: value for name, value in vars(program.WorkerSettings).items() if not name.startswith("_")}
    chosen["redis_settings"].conn_timeout = PATIENCE  # one second is too short where much else runs, and the worker ends
    id_ = f"{place.tasks}-A-1"
    worker = Worker(**chosen, handle_signals=False, poll_delay=0.05)
    work = asyncio.create_task(worker.async_run())
    try:
        for _ in range(2):
            job = await redis.enqueue_job("place_order", "A-1", _job_id=id_)
            assert job is not None
            await job.result(timeout=PATIENCE)
            await redis.delete(result_key_prefix + id_)
        assert await until(capsys, []) == ["invoice of A-1"]
        while await redis.zcard(place.tasks) and not work.done():  # noqa: ASYNC110 - another program's queue
            await asyncio.sleep(0.02)
        assert not work.done(), work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await worker.close()
        await redis.delete(place.tasks, job_key_prefix + id_, result_key_prefix + id_, f"{place.tasks}:health-check")
        await redis.aclose(close_connection_pool=True)
        await program.sessions.kw["bind"].dispose()
    assert capsys.readouterr().out == ""
    assert place.orders() == ["A-1"]


async def test_procrastinate(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The worker of the first run vanishes before it has noted the end of the job: the job is retried."""
    program = place.load("procrastinate_tasks")
    assert isinstance(program.app.connector, PsycopgConnector)
    async with program.app.open_async():
        await program.app.schema_manager.apply_schema_async()
        number = await program.place_order.defer_async(order_id="A-1")
        await program.app.run_worker_async(wait=False, install_signal_handlers=False)
        await program.app.connector.execute_query_async(
            "UPDATE procrastinate_jobs SET status = 'doing' WHERE id = %(number)s", number=number
        )  # as the worker left it
        stalled = await program.app.job_manager.get_stalled_jobs()
        assert [each.id for each in stalled] == [number]
        await program.retry_stalled.defer_async(timestamp=0)
        for _ in range(2):
            await program.app.run_worker_async(wait=False, install_signal_handlers=False)
        jobs = await program.app.job_manager.list_jobs_async()
    await program.sessions.kw["bind"].dispose()
    assert [each.status for each in jobs] == ["succeeded"] * len(jobs)
    assert capsys.readouterr().out == "invoice of A-1\n"
    assert place.orders() == ["A-1"]
