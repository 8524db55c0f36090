"""A database, an application of Celery with a broker in memory, and a tracer as in a worker, all in the process of a test."""

import asyncio
import itertools
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from celery.app.trace import build_tracer
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from onceonly import Endpoint
from onceonly.assembly import open_database
from onceonly.formats.records import decode_record
from onceonly.integrations.celery import ExactlyOnceTask
from onceonly.integrations.celery_messages import StoredTask, read_stored
from onceonly.model.identity import Identity
from onceonly.sql.schema import create as create_schema
from onceonly.sql.store.tables import SCHEMA as STORE
from tests.integrations.celery_models import Base, Line, engine_of

NAMES = itertools.count(1)


class Place:
    """A database, in a file by default, an application with a broker in memory, and a tracer as in a worker."""

    def __init__(self, tmp_path: Path, store: str = "", **terms: Any) -> None:
        self.store = store or f"sqlite:///{tmp_path}/shop.db"
        self.engine = engine_of(self.store)
        self.sessions = sessionmaker(self.engine)
        self.shop = Endpoint("celery-shop", store=self.store, transport="memory://celery")
        self.name = f"place{next(NAMES)}"
        options = {"wait": 0.1, "retry_delay": 0.0, **terms}
        self.app = Celery(
            self.name,
            broker="memory://",
            backend="cache+memory://",
            task_cls=ExactlyOnceTask.of(self.shop, self.sessions, **options),
            set_as_current=False,
        )
        self.app.conf.update(task_default_queue=self.name, task_publish_retry=False)
        self.task = partial(self.app.task, shared=False)

    def create_tables(self) -> None:
        """Make the tables."""

        async def create() -> None:
            async with open_database(self.store) as database:
                await create_schema(database, STORE)

        asyncio.run(create())
        Base.metadata.create_all(self.engine)

    def run(self, task: Any, *args: Any, id: str = "t1", kwargs: Any = None, **request: Any) -> Any:  # noqa: A002 - Celery's word
        """Run a task as a worker does, and return its outcome: `retval`, and `info.state` if it was no success."""
        self.app.finalize()
        tracer = build_tracer(task.name, task, app=self.app)
        return tracer(id, args, kwargs or {}, {"id": id, "delivery_info": {}, "task": task.name, **request})

    def value(self, task: Any, *args: Any, **request: Any) -> Any:
        """Run a task that succeeds."""
        outcome = self.run(task, *args, **request)
        assert outcome.info is None, outcome.info.retval
        return outcome.retval

    def failure(self, task: Any, *args: Any, **request: Any) -> Any:
        """Run a task that fails, and return why."""
        outcome = self.run(task, *args, **request)
        assert outcome.info is not None
        assert outcome.info.state == "FAILURE", outcome.info
        return outcome.info.retval

    def lines(self) -> list[str]:
        """Return what is committed."""
        with self.sessions() as session:
            return list(session.scalars(select(Line.item).order_by(Line.number)))

    def stored(self) -> list[StoredTask]:
        """Return the messages that are committed and not sent."""
        with self.engine.connect() as connection:
            found = connection.execute(text("SELECT id, effects FROM onceonly_records")).all()
        records = [decode_record(Identity("shop", "x"), effects) for _, effects in sorted(found, key=_in_order)]
        return [read_stored(send.message.body) for record in records for send in record.effects]

    def tasks(self) -> list[tuple[str, Any]]:
        """Return names and arguments of the tasks that are committed and not sent."""
        return [(str(each.headers["task"]).rpartition(".")[2], json.loads(each.text)[0]) for each in self.stored()]


def _in_order(row: Any) -> Any:
    attempt, _, number = (row[0] if isinstance(row[0], str) else row[0].decode()).rpartition(".")
    return attempt, int(number)


class Tasks:
    """Tasks of the application of a place."""

    def __init__(self, place: Place) -> None:
        self.runs: list[str] = []

        @place.task(name="tests.note")
        def note(item: str, session: Session) -> str:
            session.add(Line(task="note", item=item))
            return f"noted {item}"

        @place.task(name="tests.do")
        def do(item: str, session: Session) -> str:
            self.runs.append(item)
            session.add(Line(task="do", item=item))
            note.delay(item)
            return f"done {item}"

        @place.task(name="tests.total")
        def total(parts: list[str], session: Session) -> int:
            session.add(Line(task="total", item=str(len(parts))))
            return len(parts)

        self.note, self.do, self.total = note, do, total

    def sending(self, place: Place, send: Callable[[], Any], name: str = "tests.sends") -> Any:
        """Make a task that writes a row, and sends something."""

        def sends(session: Session) -> None:
            session.add(Line(task="sends", item="sends"))
            send()

        return place.task(name=name)(sends)
