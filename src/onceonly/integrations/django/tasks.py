"""The backend for Django's tasks: a task that is enqueued is part of the transaction, and takes effect once.

    TASKS = {
        "default": {
            "BACKEND": "onceonly.integrations.django.tasks.TaskBackend",
            "OPTIONS": {"ENDPOINT": "shop.endpoints:shop"},
        }
    }

`manage.py onceonly run` is the worker. The interface is that of Django 6.0, and of the package django-tasks for older ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from onceonly.integrations.django.configuration import configuration, configuration_problems
from onceonly.integrations.django.endpoint import DjangoEndpoint
from onceonly.integrations.django.task_interface import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from onceonly.integrations.django.task_messages import RunTask

__all__ = ["RunTask", "TaskBackend"]

_APP = "onceonly.integrations.django"
_OPTION = "ENDPOINT"


class TaskBackend(BaseTaskBackend):
    """Sends tasks to an endpoint of `onceonly.integrations.django`, which runs them.

    `OPTIONS["ENDPOINT"]` is the endpoint, as `module:attribute`. All queues of `QUEUES` are the endpoint's one queue.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = False

    @property
    def endpoint(self) -> DjangoEndpoint:
        """The endpoint that runs the tasks. Raises ImproperlyConfigured."""
        found, problem = _endpoint_of(self.options)
        if found is None:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {problem}")
        return found

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Insert the row of the result, and send the task to the endpoint, in the open transaction of the endpoint's database.

        Both are rolled back with the transaction, or with its savepoint. Without an open transaction, the task is committed
        when this returns. Receivers of `task_enqueued` run in the same transaction.

        Raises InvalidTask, InvalidEffect for arguments that cannot be sent, ImproperlyConfigured, and errors of Django.
        """
        from onceonly.integrations.django import task_results as results  # noqa: PLC0415 - models need the installed app

        self.validate_task(task)
        path, endpoint = task.module_path, self.endpoint
        if results.find_task(path).func is not task.func:
            raise InvalidTask(f"another task has the path {path}, by which a worker finds it: rename one of them")
        result = TaskResult(
            task=task,
            id=results.new_result_id(),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        after = task.run_after
        at = timezone.make_aware(after) if after is not None and timezone.is_naive(after) else after
        run = RunTask(
            result=result.id,
            task=path,
            args=result.args,
            kwargs=result.kwargs,
            backend=self.alias,
            queue_name=task.queue_name,
            enqueued_at=result.enqueued_at,
            run_after=after,
        )
        with transaction.atomic(using=endpoint.database):
            results.insert_row(endpoint.database, result)
            endpoint.send(run, to=endpoint.name, at=at)
            task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return a result, as it is committed. Raises TaskResultDoesNotExist, and InvalidTask if its task is gone."""
        from onceonly.integrations.django.task_results import read_result  # noqa: PLC0415 - models need the installed app

        found = read_result(self.endpoint.database, result_id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        return found

    def check(self, **_options: Any) -> Iterator[CheckMessage]:
        """Check the settings."""
        if not apps.is_installed(_APP):
            yield Error(f"TASKS[{self.alias!r}] needs the app {_APP!r}", hint="Add it to INSTALLED_APPS.", id="onceonly.E012")
            return
        if configuration_problems(getattr(settings, "ONCEONLY", {})):
            return  # onceonly.E001
        try:
            endpoint = self.endpoint
        except ImproperlyConfigured as error:
            yield Error(str(error), id="onceonly.E010")
            return
        if not any(_is_at(name, endpoint) for name in configuration().endpoints):
            name = self.options[_OPTION]
            yield Error(
                f"TASKS[{self.alias!r}]: endpoint {name!r} is not in ONCEONLY ENDPOINTS, so `manage.py onceonly run` does not "
                "run its tasks",
                hint=f'Add it: ONCEONLY = {{"ENDPOINTS": [{name!r}]}}.',
                id="onceonly.E011",
            )


def _endpoint_of(options: Mapping[str, Any]) -> tuple[DjangoEndpoint | None, str]:
    """Return the endpoint that OPTIONS names, or what is wrong with them."""
    unknown = sorted(set(options) - {_OPTION})
    if unknown:
        return None, f"OPTIONS has {unknown[0]!r}, which is unknown: use {_OPTION}"
    name = options.get(_OPTION)
    if not isinstance(name, str) or name.count(":") != 1:
        return None, f'OPTIONS needs {_OPTION}: write module:attribute, such as "shop.endpoints:shop"'
    try:
        found = import_string(name.replace(":", "."))
    except ImportError as error:
        return None, f"{_OPTION} is {name!r}, which cannot be imported: {error}"
    if not isinstance(found, DjangoEndpoint):
        return None, f"{_OPTION} is {name!r}, which is not an Endpoint of {_APP}"
    return found, ""


def _is_at(name: str, endpoint: DjangoEndpoint) -> bool:
    try:
        return import_string(name.replace(":", ".")) is endpoint
    except ImportError:
        return False  # onceonly.E002
