"""A worker of Celery with prefork: `python -m benchmarks.soak.celery_worker`.

It is Celery's own main process. A thread in it reports the children, and kills one now and then. The others end after a number
of tasks, and are replaced by Celery. Each order is a task that writes a row, sends a message and a second task.
"""

import os
import random
import signal
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from celery import Celery
from kombu import Exchange, Queue
from sqlalchemy.orm import Session

from benchmarks.soak.shop import OrderPlaced, placed, plan, report, sessions, shop
from benchmarks.soak.tables import Order
from onceonly.integrations.celery import ExactlyOnceTask, TaskTransaction

GLANCE_SECONDS = 0.1

app = Celery(
    plan.name,
    broker=plan.broker,
    task_cls=ExactlyOnceTask.of(shop, sessions, max_commit=timedelta(seconds=20)),
)
quorum = {"x-queue-type": "quorum"}
app.conf.update(
    task_queues=[Queue(name, Exchange(""), routing_key=name, queue_arguments=quorum) for name in (plan.orders, plan.requests)],
    task_default_queue=plan.orders,
    task_default_exchange="",
    task_default_routing_key=plan.orders,
    task_ignore_result=True,
    worker_concurrency=plan.children,
    worker_prefetch_multiplier=plan.prefetch,
    worker_max_tasks_per_child=plan.recycle_after,
    worker_enable_remote_control=False,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="place")
def place(order_id: str, session: Session, tx: TaskTransaction) -> None:
    """Write the row, announce it, and send the task that follows."""
    session.add(Order(order_id=order_id, step="placed"))
    tx.send(OrderPlaced(order_id, "placed"), to=placed)
    confirm.delay(order_id)


@app.task(name="confirm")
def confirm(order_id: str, session: Session, tx: TaskTransaction) -> None:
    """Write the row, and announce it."""
    session.add(Order(order_id=order_id, step="confirmed"))
    tx.send(OrderPlaced(order_id, "confirmed"), to=placed)


class Watcher(threading.Thread):
    """Reports the children of this process as they come and go, and kills one now and then."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="watcher")
        self._random = random.Random(plan.seed)  # noqa: S311 - when a process dies is no secret
        self._slots: dict[int, int] = {}
        self._killed: set[int] = set()

    def run(self) -> None:
        """Look at the children until the end of the process."""
        next_kill = time.monotonic() + plan.kill_every
        while True:
            self._look()
            if time.monotonic() >= next_kill and self._slots:
                next_kill += plan.kill_every
                pid = self._random.choice(list(self._slots))
                self._killed.add(pid)
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(GLANCE_SECONDS)

    def _look(self) -> None:
        children = set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
        for pid in set(self._slots) - children:
            report(f"ended {self._slots.pop(pid)} {pid} {-signal.SIGKILL if pid in self._killed else 0}")
        for pid in children - set(self._slots):
            slot = next(number for number in range(len(self._slots) + 1) if number not in self._slots.values())
            self._slots[pid] = slot
            report(f"child {slot} {pid}")


if __name__ == "__main__":
    Watcher().start()
    app.worker_main(["worker", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"])
