"""Django's admin for tests: its apps, users with permissions, and endpoints with dead letters."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from onceonly.assembly import open_dead_letters, open_transport
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.transport import Topology
from tests.django_project import alias_of, set_up

set_up()

from django.conf import settings  # noqa: E402 - Django is set up before
from django.core.management import call_command  # noqa: E402 - the same
from django.test import Client  # noqa: E402 - the same
from django.test.utils import override_settings  # noqa: E402 - the same
from django.utils import timezone  # noqa: E402 - the same

from onceonly.integrations.django import Endpoint  # noqa: E402 - the same
from onceonly.integrations.django.models import TaskResult  # noqa: E402 - the same
from onceonly.integrations.django.task_results import new_result_id  # noqa: E402 - the same

CONTRIB = ("admin", "auth", "contenttypes", "messages", "sessions", "staticfiles")
SITE = "site"
"""The alias of the database with users and sessions. The endpoints have others."""


class ContribRouter:
    """Keeps the tables of Django's own apps in one database."""

    def db_for_read(self, model: Any, **_hints: Any) -> str | None:
        return SITE if model._meta.app_label in CONTRIB else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_hints: Any) -> bool | None:
        return db == SITE if app_label in CONTRIB else None


@contextmanager
def installed_admin(folder: Path) -> Iterator[None]:
    """Install the admin for a block."""
    processors = ("debug", "request")
    contexts = [f"django.template.context_processors.{each}" for each in processors]
    contexts += ["django.contrib.auth.context_processors.auth", "django.contrib.messages.context_processors.messages"]
    engine = {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": contexts},
    }
    with ExitStack() as stack:
        stack.enter_context(alias_of(SITE, f"sqlite:///{folder}/site.db"))
        changed = override_settings(
            INSTALLED_APPS=[*(f"django.contrib.{each}" for each in CONTRIB), *settings.INSTALLED_APPS],
            MIDDLEWARE=[
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware",
            ],
            TEMPLATES=[engine],
            ROOT_URLCONF="tests.integrations.django_admin_urls",
            DATABASE_ROUTERS=["tests.integrations.django_admin.ContribRouter"],
            PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
            STATIC_URL="/static/",
            DEBUG=False,
        )
        stack.enter_context(changed)
        call_command("migrate", database=SITE, verbosity=0)
        yield


def user_with(*permissions: str, name: str = "ana") -> Any:
    """Create a user who may enter the admin, with these permissions of the app."""
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415 - the app is installed for a block

    User.objects.filter(username=name).delete()
    user = User.objects.create_user(name, password=name, is_staff=True)
    found = Permission.objects.filter(content_type__app_label="onceonly", codename__in=permissions)
    assert found.count() == len(permissions)
    user.user_permissions.set(found)
    return user


def client_of(user: Any, **options: Any) -> Client:
    """Return a client that is logged in."""
    client = Client(**options)
    client.force_login(user)
    return client


def store_letters(endpoint: Endpoint, letters: Sequence[DeadLetter]) -> None:
    """Store dead letters where the endpoint has them, and declare its queue."""

    async def store() -> None:
        async with open_dead_letters(endpoint.settings.places.dead_letters) as opened:
            for each in letters:
                await opened.add(each)
        async with open_transport(str(endpoint.settings.transport), endpoint.name) as transport:
            await transport.declare([Topology(endpoint=endpoint.name)])

    asyncio.run(store())


def store_result(alias: str, status: str = "READY", **more: Any) -> str:
    """Store the result of a task. Returns its id."""
    id_ = new_result_id()
    defaults = {"task": "shop.tasks.place", "args": [], "kwargs": {}, "backend": "default", "queue_name": "default"}
    values = {**defaults, "enqueued_at": timezone.now(), "worker_ids": [], "errors": [], **more}
    TaskResult.objects.using(alias).create(id=id_, status=status, **values)
    return id_


def count_sent(endpoint: Endpoint) -> int:
    """Count the messages in the queue of an endpoint."""

    async def count() -> int:
        async with open_transport(str(endpoint.settings.transport), endpoint.name) as transport:
            depth = await transport.depth(endpoint.name)
            return depth.waiting + depth.delayed

    return asyncio.run(count())
