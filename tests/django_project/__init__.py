"""The one Django project of the tests: a process can have only one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import django
import pymysql
from django.apps import apps as installed
from django.conf import settings
from django.db import connections
from sqlalchemy import make_url

FOLDERS: list[Path] = []
TASKS_APP = [] if django.VERSION >= (6,) else ["django_tasks"]
VERSION = "ONCEONLY_DJANGO"
"""The variable that says which version of Django the tests must run with. Without it, any will do."""
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


def set_up() -> None:
    """Set Django up in this process, once. Its default database is a file that `clean_up` deletes."""
    if installed.ready:
        return
    check_version()
    if find_spec("MySQLdb") is None:  # mysqlclient needs a compiler and the headers of a client library
        pymysql.install_as_MySQLdb()
    folder = Path(tempfile.mkdtemp(prefix="onceonly-django-"))
    FOLDERS.append(folder)
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "default.db")}},
        INSTALLED_APPS=["onceonly.integrations.django", *TASKS_APP, "tests.django_project"],
        MIDDLEWARE=["tests.django_project.urls.choose_urls"],
        ONCEONLY={"SENDING_THREAD": False},
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_PERMISSION_CLASSES": [],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
            "UNAUTHENTICATED_USER": None,
        },
        ROOT_URLCONF="tests.django_project.urls",
        SECRET_KEY="of tests",  # noqa: S106 - of tests
        TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def check_version() -> None:
    """Check that this process has the version of Django that it was started for. Raises RuntimeError."""
    found, wanted = django.get_version(), os.environ.get(VERSION) or django.get_version()
    if found != wanted:
        raise RuntimeError(f"the tests run with Django {found} of {django.__file__}, not with Django {wanted}")


def clean_up() -> None:
    """Delete the default database, at the end of the session: processes of pytest-xdist have no other end."""
    while FOLDERS:
        connections["default"].close()
        shutil.rmtree(FOLDERS.pop(), ignore_errors=True)


@contextmanager
def alias_of(alias: str, url: str, **more: Any) -> Iterator[str]:
    """Give the database of a URL an alias for a block."""
    place = make_url(url)
    vendor = place.get_backend_name().replace("mariadb", "mysql")
    database = {
        "ENGINE": f"django.db.backends.{ENGINES[vendor]}",
        "NAME": place.database,
        "USER": place.username or "",
        "PASSWORD": place.password or "",
        "HOST": place.host or "",
        "PORT": str(place.port or ""),
        **more,
    }
    connections.settings[alias] = connections.configure_settings({"default": database})["default"]
    try:
        yield alias
    finally:
        from onceonly.integrations.django.endpoint import ENDPOINTS  # noqa: PLC0415 - Django is set up before

        for endpoint in [each for each in ENDPOINTS if each.database == alias]:
            ENDPOINTS.discard(endpoint)  # the checks would ask for its database
        connections[alias].close()
        del connections[alias], connections.settings[alias]
