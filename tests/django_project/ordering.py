"""A process that commits an order with a task for it, and dies after the commit: `python -m ... TASK ITEM`."""

import os
import sys

import django

from tests.django_project.celery_app import app

if __name__ == "__main__":
    django.setup()
    app.loader.import_default_modules()

    from django.db import transaction

    from tests.django_project.models import TaskLine

    with transaction.atomic():
        transaction.on_commit(lambda: os.kill(os.getpid(), 9))
        TaskLine.objects.create(task="ordered", item=sys.argv[2])
        app.tasks[f"tests.django_project.tasks.{sys.argv[1]}"].delay_on_commit(sys.argv[2])
