"""The message of a task."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onceonly.formats.bodies import message


@message("onceonly.RunTask", kind="command")
@dataclass(frozen=True)
class RunTask:
    """A task that was enqueued. `result` is the id of its result, and `task` the path of its function."""

    result: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue_name: str
    enqueued_at: datetime
    run_after: datetime | None = None
