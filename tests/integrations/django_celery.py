"""An application of Celery in the project of Django that tests use, on one of its databases."""

from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

from celery import Celery, Task
from celery.contrib.django.task import DjangoTask
from sqlalchemy import text

from tests.django_project import set_up
from tests.integrations.celery_models import engine_of
from tests.integrations.celery_place import NAMES, Place

set_up()

from django.db import connections, transaction  # noqa: E402 - Django is set up before

from onceonly.integrations.celery import ExactlyOnceTask  # noqa: E402 - the same
from onceonly.integrations.django import Endpoint  # noqa: E402 - the same
from tests.django_project.models import Order  # noqa: E402 - the same


class DjangoPlace(Place):
    """An application whose tasks work on Django's connection of an alias. `engine` reads past Django."""

    def __init__(self, alias: str, **terms: Any) -> None:
        self.alias = alias
        self.shop = Endpoint("django-shop", database=alias, transport=f"memory://{uuid4().hex}")
        self.store = str(self.shop.settings.store)
        self.engine = engine_of(self.store)
        self.name = f"django{next(NAMES)}"
        options = {"wait": 0.1, "retry_delay": 0.0, **terms}
        self.app = Celery(
            self.name,
            broker=f"memory://{self.name}",
            backend="cache+memory://",
            task_cls=ExactlyOnceTask.of(self.shop, **options),
            set_as_current=False,
        )
        self.app.conf.update(task_default_queue=self.name, task_publish_retry=False)
        self.task = partial(self.app.task, shared=False)

    def atomic(self, **options: Any) -> Any:
        """Open a block on the database."""
        return transaction.atomic(using=self.alias, **options)

    def add(self, name: str) -> Order:
        """Write a row by the ORM."""
        found: Order = Order.objects.using(self.alias).create(name=name)
        return found

    def lines(self) -> list[str]:
        """Return the rows that are committed."""
        with self.engine.connect() as connection:
            return list(connection.execute(text("SELECT name FROM django_project_order ORDER BY id")).scalars())

    def keys(self) -> int:
        """Return how many keys are committed."""
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM onceonly_keys")).scalar_one())

    def sent(self) -> list[str]:
        """Take what was sent to the broker, and return the names of the tasks."""
        found = []
        with self.app.connection_for_write() as connection:
            queue = self.app.amqp.queues[self.name](connection.channel())
            queue.declare()
            while (message := queue.get(no_ack=True)) is not None:
                found.append(str(message.headers["task"]).rpartition(".")[2])
        return found

    def close(self) -> None:
        """Leave no connections."""
        self.app.close()
        self.engine.dispose()
        with suppress(KeyError):
            connections[self.alias].close()


class DjangoTasks:
    """Tasks of the application of a place, and the same without the class, in its own way and in Django's."""

    def __init__(self, place: DjangoPlace) -> None:
        self.runs: list[str] = []

        @place.task(name="tests.note")
        def note(item: str) -> str:
            place.add(f"note {item}")
            return f"noted {item}"

        @place.task(name="tests.do")
        def do(item: str) -> str:
            self.runs.append(item)
            place.add(item)
            note.delay(item)
            return f"done {item}"

        @place.task(name="tests.total")
        def total(parts: list[str]) -> int:
            place.add(f"total {len(parts)}")
            return len(parts)

        @place.task(name="tests.plain", base=Task)
        def plain(item: str) -> None:
            with place.atomic():
                place.add(item)
            note.delay(item)

        @place.task(name="tests.plain_django", base=DjangoTask)
        def plain_django(item: str) -> None:
            place.add(item)

        self.note, self.do, self.total, self.plain, self.plain_django = note, do, total, plain, plain_django
