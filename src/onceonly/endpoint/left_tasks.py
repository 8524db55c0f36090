"""Finding tasks that a handler started and left running when it ended.

A task begins with a copy of the context of the code that starts it. So a mark in the context of a handler's run is in the
contexts of its tasks, and of the tasks that those start. Nothing is changed in the user's event loop, such as its task factory.

A mark costs a task of its own for the run. So not every run is watched: the first run of each handler is, and then one at
most every `INTERVAL_SECONDS`. All tasks are searched only if something still refers to the mark after the run.
"""

import asyncio
import gc
import logging
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Any
from weakref import ref

from onceonly.formats.log_events import EventLogger, task_name

INTERVAL_SECONDS = 0.1
"""Seconds between two watched runs of a handler."""
REPORT_SECONDS = 60.0
"""Seconds between two log entries about a handler."""
NAMED = 3
"""How many tasks an entry names."""

_LIBRARY = str(Path(__file__).parents[1])
_log = EventLogger(logging.getLogger("onceonly"))


class RunMark:
    """Something that only the contexts of one run refer to."""

    __slots__ = ("__weakref__",)


_MARK: ContextVar[RunMark | None] = ContextVar("onceonly_run_mark", default=None)


def is_watched() -> bool:
    return _MARK.get() is not None


class TaskWatch:
    """Watches some runs of one handler. Times are the event loop's, in seconds."""

    __slots__ = ("_handler", "_report_at", "due")

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self.due = 0.0
        """When the next run is watched."""
        self._report_at = 0.0

    def begin(self, context: Context, now: float) -> RunMark:
        self.due = now + INTERVAL_SECONDS
        mark = RunMark()
        context.run(_MARK.set, mark)
        return mark

    def end(self, context: Context, marks: list[RunMark], now: float) -> None:
        """Log the tasks that a run has left. `marks` has its mark, and is emptied: nothing else may refer to it."""
        context.run(_MARK.set, None)
        mark = ref(marks.pop())
        if (still := mark()) is None or now < self._report_at:
            return
        if left := _marked(still):
            self._report_at = now + REPORT_SECONDS
            names = ", ".join(sorted(map(task_name, left))[:NAMED])
            _log.warning("handler left tasks running", extra={"handler": self._handler, "count": len(left), "tasks": names})


def _marked(mark: RunMark) -> list["asyncio.Task[Any]"]:
    """Find the tasks of this event loop that a run has left. Those that it has cancelled are about to end."""
    return [
        task
        for task in asyncio.all_tasks()
        if (context := _context_of(task)) is not None
        and context.get(_MARK) is mark
        and not task.cancelling()
        and not _is_library(task)
    ]


def _context_of(task: "asyncio.Task[Any]") -> Context | None:
    """Return the context of a task. Python 3.11 has no method for it."""
    if (get := getattr(task, "get_context", None)) is not None:
        context: Context = get()
        return context
    return next((each for each in gc.get_referents(task) if isinstance(each, Context)), None)


def _is_library(task: "asyncio.Task[Any]") -> bool:
    """Return whether this is a background task of this library, such as a rollback."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and code.co_filename.startswith(_LIBRARY)
