"""Tasks that write rows by the ORM, next to the same tasks without the class."""

import os
from functools import partial
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.contrib.django.task import DjangoTask
from django.db import connection, transaction

from tests.django_project.models import TaskLine


def die_once(name: str) -> None:
    """Kill this process the first time it is called with this name."""
    place = Path(os.environ["CELERY_TEST_PLACE"]) / f"died-{name}"
    try:
        place.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)


@shared_task
def place(item: str) -> str:
    """Write a row, and send a task. Die before or after the first commit, if the item says so."""
    if item.startswith("after"):
        transaction.on_commit(partial(die_once, item))
    TaskLine.objects.create(task="place", item=item)
    note.delay_on_commit(item)
    if item.startswith("before"):
        die_once(item)
    return f"placed {item}"


@shared_task
def note(item: str) -> str:
    """Write a row."""
    TaskLine.objects.create(task="note", item=item)
    return f"noted {item}"


@shared_task(bind=True, max_retries=3, default_retry_delay=0)
def fails_twice(self: Any, item: str) -> int:
    """Retry two times."""
    TaskLine.objects.create(task="fails_twice", item=item)
    note.delay(item)
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@shared_task
def connections() -> str:
    """Return the process, and the connection that its block has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return f"{os.getpid()} {cursor.fetchone()[0]}"


@shared_task(base=DjangoTask, acks_late=True, reject_on_worker_lost=True)
def plain_place(item: str) -> None:
    """Do the same without the class: the control run."""
    with transaction.atomic():
        if item.startswith("after"):
            transaction.on_commit(partial(die_once, f"plain-{item}"))
        TaskLine.objects.create(task="plain_place", item=item)
        plain_note.delay_on_commit(item)


@shared_task(base=DjangoTask, acks_late=True, reject_on_worker_lost=True)
def plain_note(item: str) -> None:
    """Write a row."""
    TaskLine.objects.create(task="plain_note", item=item)
