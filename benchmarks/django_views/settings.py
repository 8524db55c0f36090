"""The settings of the project that is measured. Middleware is that of a new project.

DJANGO_BENCH_KIND says how the view is written. `plain` commits the row, and publishes in `on_commit`, with publisher confirms;
`unconfirmed` does it without them. `once` has a key, and this process sends what was committed. `once_relay` leaves that to
`onceonly relay` in another process.
"""

import os
from urllib.parse import quote, urlsplit

KIND = os.environ.get("DJANGO_BENCH_KIND", "plain")
BROKER = os.environ.get("DJANGO_BENCH_BROKER", "amqp://127.0.0.1")
PREFIX = os.environ.get("DJANGO_BENCH_PREFIX", "bench-")
EXCHANGE, OUT = f"{PREFIX}onceonly:event:OrderPlaced", f"{PREFIX}out"

_store = urlsplit(os.environ.get("DJANGO_BENCH_STORE", "postgresql://root@127.0.0.1:5432/bench"))
SECRET_KEY = "of a benchmark"  # noqa: S105 - it protects nothing
ALLOWED_HOSTS = ["testserver"]
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
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "onceonly.integrations.django",
    "benchmarks.django_views",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ONCEONLY = {
    "ENDPOINTS": ["benchmarks.django_views.views:shop"],
    "TRANSPORT": f"{BROKER}?prefix={quote(PREFIX)}",
    "SENDING_THREAD": KIND == "once",
}
ROOT_URLCONF = "benchmarks.django_views.views"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
