"""Naming an asyncio task in a log entry."""

import asyncio
from typing import Any


def task_name(task: "asyncio.Task[Any]") -> str:
    """Return the name of a task and what it runs, such as `Task-7 (send_mail)`."""
    running: object = task.get_coro()
    return f"{task.get_name()} ({getattr(running, '__qualname__', type(running).__qualname__)})"
