"""The rows of results: one for each task, inserted when it is enqueued, and changed by the run that takes effect."""

import time
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import uuid4

from django.utils.module_loading import import_string

from onceonly.integrations.django import models
from onceonly.integrations.django.task_interface import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from onceonly.model.errors import Reject


def new_result_id() -> str:
    """Return 32 hexadecimal digits that begin with the time: rows that are inserted together are stored together."""
    return f"{time.time_ns() // 1_000_000:012x}{uuid4().hex[12:]}"


def find_task(path: str, **changes: Any) -> Task:
    """Return the task of a path, with some of its attributes changed. Raises InvalidTask if it is not there."""
    try:
        found = import_string(path)
    except ImportError as error:
        raise InvalidTask(f"task {path} cannot be imported: {error}") from error
    if not isinstance(found, Task):
        raise InvalidTask(f"{path} is not a task: put @task above the function, and keep its name for the task")
    return found.using(**changes)


def changed(result: TaskResult, **changes: Any) -> None:
    """Change a result in place, so that the context of the task has the new values. Its class is frozen."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def insert_row(alias: str, result: TaskResult) -> None:
    """Insert the row of a task that is enqueued. Raises errors of Django."""
    task = result.task
    models.TaskResult.objects.using(alias).create(
        id=result.id,
        status=result.status,
        task=task.module_path,
        args=result.args,
        kwargs=result.kwargs,
        backend=result.backend,
        queue_name=task.queue_name,
        run_after=task.run_after,
        enqueued_at=result.enqueued_at,
        worker_ids=[],
        errors=[],
    )


def read_result(alias: str, result_id: str) -> TaskResult | None:
    """Return a stored result, or None. Raises InvalidTask if its task is not there any more."""
    row = models.TaskResult.objects.using(alias).filter(id=result_id).first()
    if row is None:
        return None
    found = TaskResult(
        task=find_task(row.task, queue_name=row.queue_name, run_after=row.run_after, backend=row.backend),
        id=row.id,
        status=TaskResultStatus(row.status),
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        last_attempted_at=row.started_at,
        args=row.args,
        kwargs=row.kwargs,
        backend=row.backend,
        errors=[TaskError(**each) for each in row.errors],
        worker_ids=row.worker_ids,
    )
    changed(found, _return_value=row.return_value)
    return found


def start_row(alias: str, result: TaskResult) -> bool:
    """Take the row of a task that is ready, and lock it until the end of the transaction.

    Returns whether it was ready. Raises Reject if there is no row.
    """
    rows = models.TaskResult.objects.using(alias).filter(id=result.id)
    changes = {"status": result.status, "started_at": result.started_at, "worker_ids": result.worker_ids}
    if rows.filter(status=TaskResultStatus.READY).update(**changes):
        return True
    if not rows.exists():
        _reject(alias, result)
    return False


def finish_row(alias: str, result: TaskResult, outcome: Mapping[str, Any]) -> None:
    """Store what came of a task that `start_row` has taken. Does nothing if the task has deleted its own row."""
    rows = models.TaskResult.objects.using(alias).filter(id=result.id)
    rows.update(status=result.status, finished_at=result.finished_at, **outcome)


def _reject(alias: str, result: TaskResult) -> NoReturn:
    raise Reject(
        f"task {result.task.module_path} did not run: database {alias!r} has no row of its result {result.id}. Someone has "
        "deleted it, or the database was restored"
    )
