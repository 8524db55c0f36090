"""The settings of the project, of both workers."""

from urllib.parse import quote

from sqlalchemy import make_url

from examples.hosts.program import BROKER, PREFIX, STORE

_store = make_url(STORE or "postgresql://localhost/orders")
SECRET_KEY = "of an example"  # noqa: S105 - it protects nothing
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _store.database,
        "USER": _store.username or "",
        "PASSWORD": _store.password or "",
        "HOST": _store.host or "",
        "PORT": str(_store.port or ""),
    }
}
INSTALLED_APPS = ["examples.hosts.django_worker", "onceonly.integrations.django"]
ONCEONLY = {
    "ENDPOINTS": ["examples.hosts.django_worker.exactly_once:shop"],
    "TRANSPORT": f"{BROKER or 'amqp://127.0.0.1'}?prefix={quote(PREFIX)}",
}
USE_TZ = True
