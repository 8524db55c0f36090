"""The settings of the project that is measured: the same for tasks of Celery and for handlers."""

import os
from urllib.parse import quote, urlsplit

BROKER = os.environ.get("CELERY_BENCH_BROKER", "amqp://127.0.0.1")
PREFIX = os.environ.get("CELERY_BENCH_PREFIX", "bench-")
_store = urlsplit(os.environ.get("CELERY_BENCH_STORE", "postgresql://root@127.0.0.1:5432/bench"))
SECRET_KEY = "of a benchmark"  # noqa: S105 - it protects nothing
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _store.path.lstrip("/"),
        "USER": _store.username or "",
        "PASSWORD": _store.password or "",
        "HOST": _store.hostname or "127.0.0.1",
        "PORT": str(_store.port or 5432),
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = ["onceonly.integrations.django", "benchmarks.django_handlers"]
ONCEONLY = {
    "ENDPOINTS": ["benchmarks.django_handlers.handlers:shop"],
    "TRANSPORT": f"{BROKER}?prefix={quote(PREFIX)}",
}
USE_TZ = True
