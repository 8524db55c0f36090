"""Gives endpoints the handler of tasks, where the setting TASKS names them."""

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from django.conf import settings
from django.utils.module_loading import import_string

from onceonly.endpoint import Endpoint
from onceonly.sql.urls import DatabaseAddress

_BACKEND = "onceonly.integrations.django.tasks"
_REGISTERED: WeakSet[Endpoint] = WeakSet()


def register_tasks(endpoint: Endpoint, alias: str, place: Callable[[], DatabaseAddress]) -> None:
    """Register the handler at an endpoint that a backend of TASKS names, once. Called before an endpoint is opened.

    `alias` is the database of the endpoint, and `place` returns where its tables are.
    """
    backends = getattr(settings, "TASKS", None) or {}
    if endpoint in _REGISTERED or not any(_is_of(params, endpoint) for params in backends.values()):
        return
    from onceonly.integrations.django.task_runs import handler_of  # noqa: PLC0415 - it needs the interface of tasks

    _REGISTERED.add(endpoint)
    endpoint.handler(handler_of(alias, place))


def _is_of(params: Any, endpoint: Endpoint) -> bool:
    """Return whether a backend sends its tasks to an endpoint. What is wrong with it, `manage.py check` reports."""
    name = (params.get("OPTIONS") or {}).get("ENDPOINT")
    if not isinstance(name, str) or name.count(":") != 1:
        return False
    try:
        backend = import_string(params.get("BACKEND", ""))
        if _BACKEND not in {each.__module__ for each in backend.__mro__}:
            return False
        return import_string(name.replace(":", ".")) is endpoint
    except ImportError:
        return False
