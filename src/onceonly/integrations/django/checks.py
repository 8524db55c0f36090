"""What `manage.py check` finds about the databases of endpoints."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.db import connections
from django.db.utils import Error as DatabaseError

from onceonly.integrations.django.borrowed import borrowed_anyway, check_driver, place_of_alias
from onceonly.integrations.django.configuration import configuration_problems, options_problem
from onceonly.integrations.django.endpoint import ENDPOINTS, DjangoEndpoint
from onceonly.integrations.django.schema import RESULTS, SCHEMAS, is_allowed
from onceonly.model.errors import SchemaMissing, SchemaTooNew, SetupError
from onceonly.sql.schema import check_within

_TABLES = "models"
"""The tag under which Django runs checks that need no database."""


def register_all() -> None:
    """Have `manage.py check` run the checks."""
    checks.register(check_settings, _TABLES)
    checks.register(check_tables, checks.Tags.database)


def check_settings(**_options: Any) -> list[CheckMessage]:
    """Check what can be known without a database."""
    found: list[CheckMessage] = [
        Error(f"ONCEONLY in the settings is wrong: {problem}", id="onceonly.E001")
        for problem in configuration_problems(getattr(settings, "ONCEONLY", {}))
    ]
    if found:
        return found
    try:
        endpoints = _endpoints()
    except SetupError as error:
        return [Error(str(error), id="onceonly.E002")]
    for alias in sorted({endpoint.database for endpoint in endpoints}):
        found += _of_alias(alias)
    return [*found, *_of_tasks()]


def check_tables(databases: Sequence[str] | None = None, **_options: Any) -> list[CheckMessage]:
    """Check that the databases have the tables: `manage.py check --database default`. Not before `migrate` creates them."""
    if sys.argv[1:2] == ["migrate"]:
        return []
    used = {endpoint.database for endpoint in _endpoints()}
    return [each for alias in sorted(used & set(databases or ())) for each in _missing(alias)]


def _endpoints() -> tuple[DjangoEndpoint, ...]:
    from onceonly.integrations.django.endpoints import load_endpoints  # noqa: PLC0415 - it imports the project's

    return tuple({*load_endpoints(), *ENDPOINTS})


def _of_tasks() -> Iterator[CheckMessage]:
    """Check that Django runs the checks of tasks. These check the backend."""
    backends = getattr(settings, "TASKS", None) or {}
    if not any(str(each.get("BACKEND", "")).startswith("onceonly.") for each in backends.values()):
        return
    from onceonly.integrations.django.task_interface import APP  # noqa: PLC0415 - only projects with tasks have it

    if APP and not apps.is_installed(APP):
        yield Error(f"TASKS needs the app {APP!r}", hint="Add it to INSTALLED_APPS.", id="onceonly.E013")


def _of_alias(alias: str) -> Iterator[CheckMessage]:
    django = connections[alias]
    database = django.settings_dict
    try:
        check_driver(django)
    except SetupError as error:
        yield Error(str(error), id="onceonly.E003")
    if not database.get("AUTOCOMMIT", True):
        yield Error(
            f"database {alias!r} has AUTOCOMMIT = False, so `transaction.atomic()` does not commit",
            hint="Remove AUTOCOMMIT from its settings.",
            id="onceonly.E004",
        )
    if problem := options_problem(django.vendor, database):
        yield Error(f"database {alias!r}: {problem}", id="onceonly.E005")
    if not is_allowed(alias):
        yield Error(
            f"a router of DATABASE_ROUTERS keeps the tables of onceonly from database {alias!r}, which an endpoint uses",
            hint=f"Let allow_migrate({alias!r}, 'onceonly') return True or None.",
            id="onceonly.E006",
        )
    if database.get("ATOMIC_REQUESTS"):
        yield Warning(
            f"database {alias!r} has ATOMIC_REQUESTS: a method of a class-based view that `idempotent` decorates is committed "
            "after it has returned, so a commit that fails is answered by Django, with status 500 for every cause",
            hint="Decorate functions, or what as_view() returns: they are taken out of ATOMIC_REQUESTS.",
            id="onceonly.W007",
        )
    pooled = bool((database.get("OPTIONS") or {}).get("pool"))
    if (pooled or database.get("CONN_MAX_AGE") != 0) and not database.get("CONN_HEALTH_CHECKS"):
        yield Warning(
            f"database {alias!r} keeps connections ({'pool' if pooled else 'CONN_MAX_AGE'}) without CONN_HEALTH_CHECKS: after "
            "a restart of the server, the first request on each connection is answered with status 503",
            hint="Set CONN_HEALTH_CHECKS = True.",
            id="onceonly.W008",
        )


def _missing(alias: str) -> Iterator[CheckMessage]:
    """Check that the tables are there. A warning, because commands of a project may run `migrate` later."""
    try:
        with borrowed_anyway(alias) as connection:
            for schema in SCHEMAS.values():
                check_within(connection, place_of_alias(alias), schema)
            if RESULTS.name not in connections[alias].introspection.table_names():
                raise SchemaMissing(f"it lacks the table {RESULTS.name}")
    except (SetupError, DatabaseError) as error:
        hint = "Upgrade onceonly." if isinstance(error, SchemaTooNew) else "Run `manage.py migrate onceonly`."
        words = str(error).partition(": run ")[0]
        yield Warning(f"database {alias!r}: {words}", hint=hint, id="onceonly.W009")
