"""The settings of the shop. Without HOSTS_STORE, as in its own tests, the database is in memory."""

from typing import Any

from sqlalchemy import make_url

from examples.hosts.program import STORE

_store = make_url(STORE or "sqlite://")
SECRET_KEY = "of an example"  # noqa: S105 - it protects nothing
ALLOWED_HOSTS = ["host"]
DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": f"django.db.backends.{'postgresql' if STORE else 'sqlite3'}",
        "NAME": _store.database or ":memory:",
        "USER": _store.username or "",
        "PASSWORD": _store.password or "",
        "HOST": _store.host or "",
        "PORT": str(_store.port or ""),
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "rest_framework",
    "examples.hosts.django_shop",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
REST_FRAMEWORK = {"DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}
ROOT_URLCONF = "examples.hosts.django_shop.control"
STATIC_URL = "static/"
USE_TZ = True
