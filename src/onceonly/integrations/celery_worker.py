"""What a worker of Celery starts for its endpoints: one thread that sends and maintains, in the worker's main process."""

from typing import Any

from celery import bootsteps

from onceonly.endpoint import Endpoint
from onceonly.integrations.celery_transactions import TaskTransactions
from onceonly.integrations.sending_thread import sending_of
from onceonly.model.errors import SetupError

OPEN_SECONDS = 30.0
"""Seconds that the start of a worker waits until the endpoint is open. Its servers may be away for longer than that."""
_GREENLETS = ("gevent", "eventlet")


def step_of(endpoint: Endpoint, transactions: TaskTransactions) -> type[bootsteps.StartStopStep]:
    """Return the step of a worker for an endpoint. Celery wants a class for each."""
    return type(
        "ExactlyOnceStep",
        (SendingStep,),
        {"endpoint": endpoint, "transactions": transactions, "name": f"onceonly.{endpoint.name}", "__module__": __name__},
    )


class SendingStep(bootsteps.StartStopStep):  # type: ignore[misc] # Celery has no types
    """Opens the endpoint to send and to maintain before the worker takes tasks, and checks what tasks need.

    Raises SetupError at the start, which ends the worker: for missing tables, sessions on another database, settings that keep
    no records, and pools of greenlets.
    """

    abstract = True
    endpoint: Endpoint
    transactions: TaskTransactions
    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Start the thread. Celery calls it after the pool was started."""
        check_pool(parent.pool_cls)
        self.transactions.check()
        sending = sending_of(self.endpoint)
        sending.start(maintains=True, wait=OPEN_SECONDS)
        if isinstance(sending.failure, SetupError):
            raise sending.failure

    def stop(self, parent: Any) -> None:
        """Do nothing: the pool is stopped after this step, and its last tasks send messages. `worker_shutdown` comes last."""

    terminate = stop


def check_pool(pool: Any) -> None:
    """Refuse pools of greenlets. Raises SetupError."""
    module = pool if isinstance(pool, str) else getattr(pool, "__module__", "")
    for each in _GREENLETS:
        if each in module:
            raise SetupError(
                f"exactly-once tasks cannot run in the pool {each}: messages are sent by an event loop in a thread, and {each} "
                "replaces threads and sockets of the whole process. Use --pool=prefork, threads or solo"
            )
