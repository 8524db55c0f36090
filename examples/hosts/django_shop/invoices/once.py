"""The application of Celery, exactly once."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.hosts.django_shop.settings_invoices")

from examples.hosts.django_shop.endpoint import shop
from onceonly.integrations.celery import ExactlyOnceTask

app = Celery("shop", task_cls=ExactlyOnceTask.of(shop))
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
