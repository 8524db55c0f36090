"""The same as a task of Celery, which is acknowledged after it. The event is a message of Celery's in a queue of its own."""

import os
from typing import Any

import django
from celery import Celery
from django.db import transaction

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.django_handlers.settings")
django.setup()

from benchmarks.django_handlers.models import Order  # noqa: E402 - Django is set up before
from benchmarks.django_handlers.settings import BROKER, PREFIX  # noqa: E402 - the same

app = Celery("bench", broker=BROKER)
app.conf.update(
    task_default_queue=f"{PREFIX}in",
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=8,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)
if os.environ.get("CELERY_BENCH_KIND") == "kept":  # by default, Celery closes Django's connections after each task
    app.conf["CELERY_DB_REUSE_MAX"] = 1_000_000


@app.task(queue=f"{PREFIX}out")
def announce(order_id: str) -> None:
    """Wait in its queue."""


@app.task(name="place")
def place(order_id: str) -> None:
    """Write the row, and announce it after the commit."""
    task: Any = announce
    with transaction.atomic():
        Order.objects.create(order_id=order_id)
        task.delay_on_commit(order_id)
