"""The control with django-celery-outbox: rows and tasks are one commit of Django's connection, and a relay sends the tasks.

`python -m examples.hosts.celery_flask.outbox COMMAND` runs a command of Django, such as `migrate`.
"""

import sys

import django
from celery import chain
from django.conf import settings as django_settings
from django.core.management import execute_from_command_line
from django.db import connection, transaction
from flask import Flask, request
from sqlalchemy import make_url

from examples.hosts.celery_flask.lines import BOOKS, LATE, RESULTS, report, settings, work
from examples.hosts.program import BROKER, STORE

store = make_url(STORE)
if not django_settings.configured:  # a command imports this module again
    django_settings.configure(
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": store.database,
                "USER": store.username,
                "PASSWORD": store.password or "",
                "HOST": store.host,
                "PORT": store.port,
            }
        },
        INSTALLED_APPS=["django_celery_outbox"],
        CELERY_OUTBOX_APP="examples.hosts.celery_flask.outbox.celery",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        USE_TZ=True,
    )
    django.setup()

from django_celery_outbox import OutboxCelery  # noqa: E402 - it needs the settings

celery = OutboxCelery("shop", broker=BROKER, backend=RESULTS)
celery.conf.update(settings() | LATE)
app = Flask(__name__)


@app.post("/orders")
def place_order() -> tuple[dict[str, str], int]:
    """Write the row and the first task. A client that repeats its request finds the row."""
    order_id = request.get_json()["order_id"]
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM lines WHERE step = 'ordered' AND order_id = %s", [order_id])
            if cursor.fetchone():
                return {"placed": order_id}, 200
        write("ordered", order_id)
        charge.delay(order_id)
        report("web", order_id)
    return {"placed": order_id}, 201


@celery.task
def charge(order_id: str) -> None:
    """Write the row, have the order packed and then shipped, and tell the other service."""
    with transaction.atomic():
        work()
        write("charged", order_id)
        chain(pack.s(order_id), ship.s()).delay()
        book.apply_async((order_id,), queue=BOOKS)
    report("charge", order_id)


@celery.task
def pack(order_id: str) -> str:
    """Write the row. The chain goes on."""
    with transaction.atomic():
        work()
        write("packed", order_id)
    report("pack", order_id)
    return order_id


@celery.task
def ship(order_id: str) -> None:
    """Write the row."""
    with transaction.atomic():
        work()
        write("shipped", order_id)
    report("ship", order_id)


@celery.task
def book(order_id: str) -> None:
    """Be the other service."""
    write("booked", order_id)


def write(step: str, order_id: str) -> None:
    """Write a row on Django's connection."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO lines (step, order_id) VALUES (%s, %s)", [step, order_id])


if __name__ == "__main__":
    execute_from_command_line(sys.argv)
