"""What each program of this host has: a table with a line for each step of an order, its places, and Celery's settings."""

import os
import random
from time import sleep
from typing import Any
from urllib.parse import quote

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from examples.hosts.program import BROKER, PREFIX, Base

RESULTS = os.environ.get("HOSTS_RESULTS", "redis://127.0.0.1:6379")
"""The URL of the result backend."""
EVENTS = f"{BROKER}?prefix={quote(PREFIX)}"
"""The URL of the transport for events, on the same broker."""
TASKS, BOOKS = f"{PREFIX}tasks", f"{PREFIX}bookings"
"""The queues of tasks: the shop's, and, without onceonly, that of the other service."""
LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
"""The settings of Celery for tasks that may run twice."""
LONGEST_WORK = 0.03
"""Seconds that a task works, at most."""
VISIBILITY_SECONDS = 5


class Line(Base):
    """One row for each time a step was done: nothing else keeps it from being there twice."""

    __tablename__ = "lines"
    number: Mapped[int] = mapped_column(primary_key=True)
    step: Mapped[str] = mapped_column(String(20))
    order_id: Mapped[str] = mapped_column(String(80), index=True)


def settings() -> dict[str, Any]:
    """Return the settings that all applications of Celery have here: queues of this run, and few extras."""
    prefix = {"global_keyprefix": PREFIX}
    redis = {"visibility_timeout": VISIBILITY_SECONDS, "unacked_restore_interval": 1, "unacked_restore_throttle": 1, **prefix}
    return {
        "task_default_queue": TASKS,
        "broker_transport_options": redis if BROKER.startswith("redis") else {},
        "result_backend_transport_options": prefix,
        "result_expires": 600,
        "broker_connection_retry_on_startup": True,
        "worker_enable_remote_control": False,
    }


def work() -> None:
    """Take a moment, as a task does that has something to do."""
    sleep(random.uniform(0, LONGEST_WORK))  # noqa: S311 - no secret


def report(what: str, order_id: str) -> None:
    """Report what this process has in work. The run reads these lines, and kills."""
    os.write(1, f"{os.getpid()} {what} {order_id}\n".encode())
