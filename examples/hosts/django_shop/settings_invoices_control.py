"""The settings of the shop with invoices. Celery acknowledges a task after it, so that none is lost with a worker."""

from examples.hosts.django_shop.settings import *  # noqa: F403 - as projects of Django do
from examples.hosts.django_shop.settings import INSTALLED_APPS
from examples.hosts.program import BROKER, PREFIX

INSTALLED_APPS = [*INSTALLED_APPS, "examples.hosts.django_shop.invoices"]
CELERY_MODULE = "examples.hosts.django_shop.invoices.control"
CELERY_BROKER_URL = BROKER
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_DEFAULT_QUEUE = f"{PREFIX}tasks"
CELERY_TASK_IGNORE_RESULT = True
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
