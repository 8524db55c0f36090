"""The application of Celery of the project, as the documentation of Celery has it for Django: `celery -A` runs it."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django_project.celery_settings")

from onceonly.integrations.celery import ExactlyOnceTask
from tests.django_project.endpoints import shop

app = Celery("django-shop", task_cls=ExactlyOnceTask.of(shop, retry_delay=0.1))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
