"""The application of Celery that is measured: a task writes one row and sends one task. CELERY_BENCH_KIND says how.

`plain` commits the row, and sends then. `confirmed` is the same with publisher confirms. `once` has the task class.
CELERY_BENCH_PROFILE names a folder, to which each child process writes a profile of its main thread.
"""

import cProfile
import os
from pathlib import Path
from typing import Any

from celery import Celery, Task, signals
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from onceonly import Endpoint
from onceonly.integrations.celery import ExactlyOnceTask

STORE = os.environ.get("CELERY_BENCH_STORE", "postgresql://127.0.0.1/bench")
BROKER = os.environ.get("CELERY_BENCH_BROKER", "memory://")
PREFIX = os.environ.get("CELERY_BENCH_PREFIX", "bench-")
KIND = os.environ.get("CELERY_BENCH_KIND", "plain")
PROFILE = os.environ.get("CELERY_BENCH_PROFILE", "")
IN, OUT = f"{PREFIX}in", f"{PREFIX}out"


class Base(DeclarativeBase):
    """The tables of the application."""


class Order(Base):
    """One row for each task."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str]


IS_ONCE = KIND == "once"
sessions = sessionmaker(create_engine(STORE.replace("postgresql://", "postgresql+psycopg://")))
shop = Endpoint("bench", store=STORE)
base = ExactlyOnceTask.of(shop, sessions) if IS_ONCE else Task
app = Celery("bench", broker=BROKER, task_cls=base)
app.conf.update(
    task_default_queue=IN,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=8,
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True} if KIND == "confirmed" else {},
)


@app.task(queue=OUT)
def announce(order_id: str) -> None:
    """Wait in its queue."""


if IS_ONCE:

    @app.task(name="place")
    def place(order_id: str, session: Session) -> None:
        """Write the row, and send the task."""
        session.add(Order(order_id=order_id))
        announce.delay(order_id)

else:

    @app.task(name="place")
    def place(order_id: str) -> None:
        """Write the row, and send the task."""
        with sessions.begin() as session:
            session.add(Order(order_id=order_id))
        announce.delay(order_id)


if PROFILE:
    _profile = cProfile.Profile()

    @signals.worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
    def _begin(**_: Any) -> None:
        _profile.enable()

    @signals.worker_process_shutdown.connect(weak=False)  # type: ignore[untyped-decorator]
    def _end(**_: Any) -> None:
        _profile.disable()
        _profile.dump_stats(str(Path(PROFILE) / f"{os.getpid()}.prof"))
