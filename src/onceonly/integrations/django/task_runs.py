"""The handler of tasks: it runs a task, and stores what came of it, in the transaction that handles the message."""

import json
import os
import socket
from collections.abc import Callable
from traceback import format_exception
from typing import Any

from django.db import connections, transaction
from django.db.utils import InterfaceError, OperationalError
from django.utils import timezone

from onceonly.endpoint.context import Context
from onceonly.integrations.django.borrowed import driver_error
from onceonly.integrations.django.task_interface import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from onceonly.integrations.django.task_messages import RunTask
from onceonly.integrations.django.task_results import changed, find_task, finish_row, start_row
from onceonly.model.errors import (
    BudgetExceeded,
    ConflictError,
    HandlerExpired,
    HandlerFailed,
    RetryableError,
    RetryLater,
    WorkerStopped,
    leaves,
)
from onceonly.sql.dialect import DatabaseFailure
from onceonly.sql.store.enlistment import shared_dialect
from onceonly.sql.translation import NOT_A_HANDLERS
from onceonly.sql.urls import DatabaseAddress

LONGEST_TRACEBACK = 32_000
"""Characters of a traceback that are stored, from its end."""
LONGEST_WORKER_ID = 64  # characters, as in Django
UNKNOWN_WORKER = "unknown"
"""The worker of an attempt that was rolled back, and its id with it."""
_REPEATED = (BudgetExceeded, ConflictError, HandlerExpired, HandlerFailed, RetryableError, RetryLater, WorkerStopped)
"""Errors of onceonly after which the message is delivered again."""


def handler_of(alias: str, place: Callable[[], DatabaseAddress]) -> Callable[[RunTask, Context], None]:
    """Return the handler of an endpoint's tasks. `alias` is its database, and `place` returns where its tables are."""

    def run_task(run: RunTask, context: Context) -> None:
        """Run a task, unless its row says that it has run."""
        task = find_task(run.task, queue_name=run.queue_name, run_after=run.run_after, backend=run.backend)
        now = timezone.now()
        result = TaskResult(
            task=task,
            id=run.result,
            status=TaskResultStatus.RUNNING,
            enqueued_at=run.enqueued_at,
            started_at=now,
            finished_at=None,
            last_attempted_at=now,
            args=run.args,
            kwargs=run.kwargs,
            backend=run.backend,
            errors=[],
            worker_ids=[*[UNKNOWN_WORKER] * context.attempts, worker_id()],
        )
        with transaction.atomic(using=alias, savepoint=False):
            if start_row(alias, result):
                _Run(alias, place(), result).run()

    return run_task


class _Run:
    """One run of a task, in an open transaction."""

    def __init__(self, alias: str, place: DatabaseAddress, result: TaskResult) -> None:
        self._alias = alias
        self._place = place
        self._result = result
        self._sender = type(result.task.get_backend())

    def run(self) -> None:
        """Run the task in a savepoint, which an exception of the task rolls back. Raises what the message is repeated for."""
        task_started.send(self._sender, task_result=self._result)
        try:
            with transaction.atomic(using=self._alias):
                value = self._call()
        except Exception as error:
            if self._is_repeated(error):
                raise
            self._fail(error)  # here, because receivers of the signal log the exception that is handled
        else:
            self._finish(TaskResultStatus.SUCCESSFUL, _return_value=value)

    def _call(self) -> Any:
        """Call the function. Returns what is stored of its return value. Raises TypeError or ValueError if it is not JSON."""
        result = self._result
        context = [TaskContext(task_result=result)] if result.task.takes_context else []
        value = normalize_json(result.task.call(*context, *result.args, **result.kwargs))
        json.dumps(value, allow_nan=False)
        django = connections[self._alias]
        if django.vendor == "postgresql":  # other databases would read whole tables
            django.check_constraints()
        return value

    def _fail(self, error: Exception) -> None:
        kind = type(error)
        self._result.errors.append(
            TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=_traceback(error))
        )
        self._finish(TaskResultStatus.FAILED)

    def _finish(self, status: Any, **changes: Any) -> None:
        result = self._result
        changed(result, status=status, finished_at=timezone.now(), **changes)
        errors = [{"exception_class_path": each.exception_class_path, "traceback": each.traceback} for each in result.errors]
        finish_row(self._alias, result, {"errors": errors, "return_value": changes.get("_return_value")})
        task_finished.send(self._sender, task_result=result)

    def _is_repeated(self, error: Exception) -> bool:
        """Return whether the message is to be delivered again. Otherwise the task has failed."""
        return any(isinstance(each, _REPEATED) or self._is_outage(each) for each in leaves(error))

    def _is_outage(self, error: BaseException) -> bool:
        """Return whether a database cannot do now what it can do later. Errors of other databases are known by class only."""
        is_operational = isinstance(error, (InterfaceError, OperationalError))
        found = driver_error(error)
        own = connections[self._alias].Database.__name__.partition(".")[0]
        if found is None or type(found.orig).__module__.partition(".")[0] != own:
            return is_operational
        said = shared_dialect(self._place.url).classify(found)
        return said in NOT_A_HANDLERS or (said is DatabaseFailure.NOTHING and is_operational)


def worker_id() -> str:
    """Return what names this process in results."""
    return f"{socket.gethostname()}:{os.getpid()}"[-LONGEST_WORKER_ID:]


def _traceback(error: Exception) -> str:
    try:
        return "".join(format_exception(error))[-LONGEST_TRACEBACK:]
    except Exception as broken:  # noqa: BLE001 - the exception's own properties may raise anything
        return f"{type(error).__name__}\n(its traceback cannot be shown: it raised {type(broken).__name__})\n"
