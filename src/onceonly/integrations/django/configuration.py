"""The setting `ONCEONLY` of a Django project, checked, and the database URL of one of its aliases."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist
from sqlalchemy import URL, make_url

from onceonly.sql.options import TLS_OPTIONS

DEFAULT_ALIAS = "default"
_TLS_NAMES = {"ca": "ssl-ca", "cert": "ssl-cert", "key": "ssl-key"}
"""What the drivers of MySQL call the files for TLS, and what the URL calls them."""
_MEMORY = "sqlite:///:memory:"


class Configuration(NamedTuple):
    """What `ONCEONLY` says: defaults of endpoints, and how their messages are sent."""

    endpoints: tuple[str, ...] = ()
    database: str = DEFAULT_ALIAS
    transport: str | None = None
    sending_thread: bool = True


_TYPES: Mapping[str, tuple[type, ...]] = {
    "ENDPOINTS": (list, tuple),
    "DATABASE": (str,),
    "TRANSPORT": (str, type(None)),
    "SENDING_THREAD": (bool,),
}


def configuration() -> Configuration:
    """Return what the setting says. Raises ImproperlyConfigured, which lists all that is wrong."""
    given = getattr(settings, "ONCEONLY", {})
    if problems := configuration_problems(given):
        raise ImproperlyConfigured("ONCEONLY in the settings is wrong: " + "; ".join(problems))
    found: dict[str, Any] = {name.lower(): value for name, value in given.items()}
    if "endpoints" in found:
        found["endpoints"] = tuple(found["endpoints"])
    return Configuration(**found)


def configuration_problems(given: Any) -> list[str]:
    """Return what is wrong with a value of the setting."""
    if not isinstance(given, Mapping):
        return [f"it must be a dict, not {type(given).__name__}"]
    problems = []
    for name, value in given.items():
        types = _TYPES.get(name)
        if types is None:
            problems.append(f"{name!r} is unknown: use {', '.join(_TYPES)}")
        elif not isinstance(value, types):
            problems.append(f"{name} must be a {types[0].__name__}, not {type(value).__name__}")
        elif name == "ENDPOINTS":
            listed: Any = value
            wrong = [each for each in listed if not isinstance(each, str) or each.count(":") != 1]
            problems += [f"ENDPOINTS has {each!r}: write module:attribute, such as shop.endpoints:shop" for each in wrong]
        elif name == "DATABASE" and value not in settings.DATABASES:
            problems.append(f"DATABASE is {value!r}, which DATABASES does not have")
    return problems


def is_test() -> bool:
    """Return whether Django's test runner, or pytest-django, has set up its test environment."""
    utilities = sys.modules.get("django.test.utils")  # imported by whatever sets it up
    return hasattr(getattr(utilities, "_TestState", None), "saved_data")


def store_url(alias: str, given: str | None = None) -> str:
    """Return the URL of the database that an alias names now: a test runner gives it another name.

    `given` is the URL of an endpoint's own, of which only the name of the database is replaced. Raises ImproperlyConfigured.
    """
    try:
        database = connections[alias].settings_dict
    except ConnectionDoesNotExist as error:
        raise ImproperlyConfigured(f"DATABASES has no alias {alias!r}: name one of {', '.join(connections)}") from error
    vendor, name = connections[alias].vendor, str(database["NAME"] or "")
    if given is not None and not is_test():
        return given
    if vendor == "sqlite":
        return server_url(alias)
    if given is not None:
        return make_url(given).set(database=name).render_as_string(hide_password=False)
    if problem := options_problem(vendor, database):
        raise ImproperlyConfigured(f"database {alias!r}: {problem}")
    return server_url(alias)


def options_problem(vendor: str, database: Mapping[str, Any]) -> str:
    """Return why other processes would not find the database, or the tables, by the URL made of its settings."""
    options = database.get("OPTIONS") or {}
    host = str(database.get("HOST") or "")
    hint = "set store= of the endpoint to the URL of the same database"
    if host.startswith("/"):
        return f"its HOST is a socket, {host}, which a URL of onceonly cannot name: use localhost, or {hint}"
    if vendor == "postgresql" and (options.get("service") or not database.get("NAME")):
        return f"it is named by a service file: {hint}"
    if vendor == "postgresql" and "search_path" in str(options.get("options", "")):
        return f"its OPTIONS set search_path: {hint}, with ?schema="
    if vendor == "mysql" and options.get("read_default_file"):
        return f"it is named by read_default_file: {hint}"
    return ""


_DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql", "sqlite": "sqlite"}


def server_url(alias: str) -> str:
    """Return the URL by the settings of an alias, without those that no URL can express. Raises ImproperlyConfigured."""
    vendor, database = connections[alias].vendor, connections[alias].settings_dict
    if vendor not in _DRIVERS:
        system = connections[alias].display_name
        raise ImproperlyConfigured(
            f"database {alias!r} is of {system}: onceonly works on PostgreSQL, MariaDB, MySQL and SQLite"
        )
    if vendor == "sqlite":
        name = str(database["NAME"] or "")
        return _MEMORY if _is_in_memory(name) else f"sqlite:///{Path(name).resolve()}"
    options = database.get("OPTIONS") or {}
    query = {name: str(options[name]) for name in TLS_OPTIONS[vendor] if name in options}
    if vendor == "mysql" and isinstance(files := options.get("ssl"), Mapping):
        query |= {_TLS_NAMES[name]: str(value) for name, value in files.items() if name in _TLS_NAMES}
    port = database.get("PORT")
    return URL.create(
        _DRIVERS[vendor],
        username=str(database["USER"]) if database.get("USER") else None,
        password=str(database["PASSWORD"]) if database.get("PASSWORD") else None,
        host=str(database.get("HOST") or "localhost"),
        port=int(port) if port else None,
        database=str(database["NAME"]),
        query=query,
    ).render_as_string(hide_password=False)


def _is_in_memory(name: str) -> bool:
    return name in {"", ":memory:"} or "mode=memory" in name
