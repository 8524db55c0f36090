"""The settings of the project for workers of Celery. The environment says where its database and its broker are."""

import os

import pymysql
from sqlalchemy import make_url

pymysql.install_as_MySQLdb()
_store = make_url(os.environ["CELERY_TEST_STORE"])
_prefix = os.environ["CELERY_TEST_PREFIX"]
_vendor = _store.get_backend_name()
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{'sqlite3' if _vendor == 'sqlite' else _vendor}",
        "NAME": _store.database,
        "USER": _store.username or "",
        "PASSWORD": _store.password or "",
        "HOST": _store.host or "",
        "PORT": str(_store.port or ""),
    }
}
INSTALLED_APPS = ["onceonly.integrations.django", "tests.django_project"]
ONCEONLY = {"ENDPOINTS": ["tests.django_project.endpoints:shop"]}
SECRET_KEY = "of tests"  # noqa: S105 - of tests
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CELERY_BROKER_URL = os.environ["CELERY_TEST_BROKER"]
CELERY_RESULT_BACKEND = os.environ.get("CELERY_TEST_BACKEND")
CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS = {"global_keyprefix": f"{_prefix}:"}
CELERY_TASK_DEFAULT_QUEUE = f"{_prefix}-tasks"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_SEND_TASK_EVENTS = False
CELERY_WORKER_ENABLE_REMOTE_CONTROL = False
