"""Runs real workers of Celery on an application of tests, and looks at what they have done."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from celery import Celery
from kombu import Connection, pools
from redis import Redis
from sqlalchemy import select, text

from onceonly.assembly import open_database
from onceonly.sql.schema import create as create_schema
from onceonly.sql.store.tables import SCHEMA as STORE
from tests import ROOT
from tests.integrations.celery_models import Base, Line, engine_of
from tests.servers.available import RABBITMQ, REDIS, need

PATIENCE = 30.0
"""Seconds after which what did not happen counts as lost."""
MODULE = "tests.integrations.celery_app"


class CeleryPlace:
    """A database, a broker and queues of one test, and the workers on them."""

    application = tasks = MODULE
    """The modules that have the application, and its tasks."""

    def __init__(self, store: str, broker: str, place: Path, backend: str | None = None) -> None:
        self.store, self.broker, self.place = store, broker, place
        self.prefix = f"celery-{uuid4().hex[:8]}"
        self.engine = engine_of(store)
        self.environment = {
            "CELERY_TEST_STORE": store,
            "CELERY_TEST_BROKER": broker,
            "CELERY_TEST_PREFIX": self.prefix,
            "CELERY_TEST_PLACE": str(place),
        }
        if backend:
            self.environment["CELERY_TEST_BACKEND"] = backend
        self.client = Celery(f"{self.prefix}-client", broker=broker, backend=backend, set_as_current=False)
        self.client.conf.update(
            task_default_queue=f"{self.prefix}-tasks",
            control_exchange=self.prefix,
            event_exchange=f"{self.prefix}-events",
            broker_transport_options=self._transport_options,
            result_backend_transport_options={"global_keyprefix": f"{self.prefix}:"},
        )

    @property
    def _transport_options(self) -> dict[str, str]:
        return {"global_keyprefix": f"{self.prefix}:"} if self.broker.startswith("redis") else {}

    def connection(self) -> Connection:
        """A connection to the broker."""
        return Connection(self.broker, transport_options=self._transport_options)

    def create_tables(self) -> None:
        """Make the tables of the endpoint, and those of the application."""
        asyncio.run(create(self.store))
        Base.metadata.create_all(self.engine)

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        """Send a task of the application, as a client that has nothing of this library."""
        return self.client.send_task(f"{self.tasks}.{task}", args, **options)

    def revoke(self, task_id: str, **options: Any) -> None:
        """Revoke a task, and wait until a worker, which has `CELERY_TEST_CONTROL`, has answered."""
        control = self.client.control
        self.wait(lambda: control.revoke(task_id, reply=True, limit=1, timeout=1.0, **options), f"{task_id} is revoked")

    @contextmanager
    def events(self) -> Iterator[list[dict[str, Any]]]:
        """Collect the events of workers in a block, as Flower does."""
        found: list[dict[str, Any]] = []
        is_open, is_over = Event(), Event()

        def collect() -> None:
            with self.connection() as connection:
                receiver = self.client.events.Receiver(connection, handlers={"*": found.append})
                with receiver.consumer_context() as (_, channel, _consumers):
                    is_open.set()
                    while not is_over.is_set():
                        with suppress(TimeoutError):
                            channel.connection.client.drain_events(timeout=0.2)

        thread = Thread(target=collect)
        thread.start()
        assert is_open.wait(PATIENCE)
        try:
            yield found
        finally:
            is_over.set()
            thread.join()

    @contextmanager
    def worker(self, *options: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `celery worker` for a block."""
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            self.application,
            "worker",
            "--loglevel=INFO",
            "--without-gossip",
            "--without-mingle",
        ]
        log = (self.place / "worker.log").open("ab")
        started = subprocess.Popen(
            [
                *command,
                "-Q",
                f"{self.prefix}-tasks,{self.prefix}-other",
                "--without-heartbeat",
                "--hostname",
                f"{uuid4().hex[:6]}@test",
                *(options or ("--concurrency=2",)),
            ],
            cwd=ROOT,
            env={**os.environ, **self.environment, **environment},
            stdout=log,
            stderr=log,
        )
        try:
            yield started
        finally:
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()
            log.close()

    @contextmanager
    def beat(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run `celery beat` for a block."""
        schedule = ("--schedule", str(self.place / f"schedule-{name}"), "--pidfile", "")
        command = [sys.executable, "-m", "celery", "-A", MODULE, "beat", "--loglevel=DEBUG", *schedule]
        with (self.place / f"beat-{name}.log").open("wb") as log:
            environment = {**os.environ, **self.environment}
            started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
            try:
                yield started
            finally:
                if started.poll() is None:
                    started.kill()
                    started.wait()

    @property
    def log(self) -> str:
        """What the workers have logged."""
        file = self.place / "worker.log"
        return file.read_text() if file.exists() else ""

    def lines(self) -> Counter[str]:
        """Return the rows, as texts with their numbers."""
        with self.engine.connect() as connection:
            found = connection.execute(select(Line.task, Line.item)).all()
        return Counter(f"{task} {item}" for task, item in found)

    def records(self) -> int:
        """Return how many messages are committed and not sent."""
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM onceonly_records")).scalar_one())

    def wait(self, until: Callable[[], object], what: str = "") -> None:
        """Wait until something is true."""
        end = monotonic() + PATIENCE
        while not until():
            if monotonic() > end:
                raise AssertionError(f"did not happen: {what}; rows {dict(self.lines())}\n{self.log[-3000:]}")
            sleep(0.05)

    def wait_for(self, *lines: str) -> None:
        """Wait for these rows, and until nothing is left to send and no task waits."""
        self.wait(lambda: not set(lines) - set(self.lines()), f"rows {lines}")
        self.wait(lambda: not self.records() and not self.waiting(), "nothing left to send")

    def waiting(self) -> int:
        """Return how many tasks wait in the queue."""
        if self.broker.startswith("redis"):
            with Redis.from_url(self.broker) as redis:
                return int(redis.llen(f"{self.prefix}:{self.prefix}-tasks"))
        with self.connection() as connection:
            channel: Any = connection.channel()
            try:
                return int(channel.queue_declare(f"{self.prefix}-tasks", passive=True).message_count)
            except connection.channel_errors:
                return 0

    def remove(self) -> None:
        """Remove the queues."""
        backend = self.client.backend
        if hasattr(backend, "result_consumer"):
            backend.remove_pending_result = lambda _result: None  # of a result that is collected later: it would connect again
            backend.result_consumer.stop()
            backend.client.connection_pool.disconnect()
        self.client.close()
        pools.reset()  # they are those of the process, by the URL of the broker
        self.engine.dispose()
        for url in {self.broker, self.environment.get("CELERY_TEST_BACKEND", "")}:
            if url.startswith("redis"):
                with Redis.from_url(url) as redis:
                    for key in redis.scan_iter(match=f"*{self.prefix}*", count=1000):
                        redis.delete(key)
        if self.broker.startswith("redis"):
            return
        with self.connection() as connection:
            for name in ("tasks", "other"):
                channel: Any = connection.channel()
                channel.queue_delete(f"{self.prefix}-{name}")
                channel.exchange_delete(f"{self.prefix}-{name}")
            for exchange in ("{}.pidbox", "reply.{}.pidbox", "{}-events"):
                channel.exchange_delete(exchange.format(self.prefix))


@contextmanager
def opened_place(store: str, broker: str, tmp_path: Path, *, has_tables: bool = True) -> Iterator[CeleryPlace]:
    """Make a place with a result backend on Redis, and remove it."""
    place = CeleryPlace(store, broker_url(broker), tmp_path, broker_url("redis"))
    try:
        if has_tables:
            place.create_tables()
        yield place
    finally:
        place.remove()


async def create(store: str) -> None:
    """Create the endpoint's tables."""
    async with open_database(store) as database:
        await create_schema(database, STORE)


def broker_url(name: str) -> str:
    """Return the URL of a broker for a test."""
    return need(RABBITMQ if name == "rabbitmq" else REDIS)
