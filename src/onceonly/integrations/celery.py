"""For Celery: `ExactlyOnceTask`, the class of tasks whose rows, follow-up tasks and return value are one commit.

Tasks run on Celery's own workers, in sessions of SQLAlchemy or on Django's own connection. What they send with `delay`,
`apply_async` and the canvas is stored in their transaction, and sent after it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, Protocol
from uuid import uuid4

from onceonly.config.endpoint import LONGEST_COMMIT
from onceonly.endpoint import Endpoint, Outgoing, Transaction
from onceonly.endpoint.sender import OutsideSender
from onceonly.model.errors import DriverMissing, SetupError, TransactionMisused

try:
    from celery import Celery, Task, signals
    from celery.canvas import Signature
    from celery.result import AsyncResult
except ModuleNotFoundError as missing:
    raise DriverMissing("celery is not installed: pip install 'onceonly[celery]'") from missing

from onceonly.integrations.celery_beat import ExactlyOnceScheduler, ScheduledOnce
from onceonly.integrations.celery_messages import CapturingProducer, check_task_id, refuse_producer
from onceonly.integrations.celery_tasks import (
    CAPTURE,
    UNIT,
    Capture,
    TaskArguments,
    TaskOptions,
    capturing,
    check_chord,
    injecting,
    install,
    perform,
    sender_of,
)
from onceonly.integrations.celery_transactions import OpenBlock, SessionTransactions, TaskTransactions
from onceonly.integrations.celery_worker import step_of
from onceonly.integrations.sending_thread import stop_sending
from onceonly.integrations.session_transactions import RequestTransaction, Sessions
from onceonly.systems.carriers import use_carriers

__all__ = [
    "ExactlyOnceScheduler",
    "ExactlyOnceTask",
    "ScheduledOnce",
    "Sessions",
    "TaskTransaction",
    "apply_async",
    "captured",
    "delay",
    "exactly_once",
]

TaskTransaction = RequestTransaction
"""The annotation that injects the transaction of a task, with `send` and `publish`: `tx: TaskTransaction`."""

_STEPS: dict[Endpoint, Any] = {}
_NEEDS_ENDPOINT = (
    "ExactlyOnceTask needs an endpoint: use ExactlyOnceTask.of(shop, sessions), or ExactlyOnceTask.of(shop) on Django"
)
_PLAIN = frozenset({"celery.backend_cleanup"})
"""Tasks of Celery that work in the result backend, which may be the database of the transaction."""


class ExactlyOnceTask(Task):  # type: ignore[misc] # Celery has no types
    """The base class of tasks that take effect once. `of` makes the class for an endpoint.

    A parameter annotated `sqlalchemy.orm.Session` receives the session of the task's transaction, and one annotated
    `TaskTransaction` the transaction. The caller does not pass them. After the function has returned, its rows, the tasks and
    events that it has sent, its key and its return value are committed together. An exception rolls all of it back.

    A run with a known key returns the value of the first run, and does nothing else.

    Options, as arguments of `@app.task` or as attributes of a class:

    * `key`: returns the key of a run from the arguments of the task, by their names: `key=lambda order_id, **_: order_id`. It
      is text of 1 to 255 bytes. The same key with other arguments is refused. Default: the id of the task.
    """

    abstract = True
    acks_late = True
    reject_on_worker_lost = True
    retry_on_worker_lost = False
    Request = "onceonly.integrations.celery_requests:ExactlyOnceRequest"
    key: ClassVar[Callable[..., str] | None] = None
    _arguments: ClassVar[TaskArguments]
    _once: ClassVar[TaskOptions | None] = None

    @classmethod
    def of(
        cls,
        endpoint: Endpoint,
        sessions: Sessions | None = None,
        *,
        wait: float | None = 5.0,
        retry_delay: float = 1.0,
        max_commit: timedelta = LONGEST_COMMIT,
    ) -> type["ExactlyOnceTask"]:
        """Return the class for tasks of an endpoint: `Celery("billing", task_cls=ExactlyOnceTask.of(shop, sessions))`.

        With an endpoint of `onceonly.integrations.django`, `ExactlyOnceTask.of(shop)`: tasks run in `transaction.atomic()` of
        its database. Inside of such a block of the application, `delay` and `apply_async` store the task in it. The class has
        `delay_on_commit` and `apply_async_on_commit`.

        * `sessions`: a `sessionmaker`, a `scoped_session`, or a function that returns the session of a task. Its database is
          the endpoint's store. None for Django.
        * `wait`: seconds to wait for another run with the same key. Then the broker delivers the task again. None: as long as
          the session waits for any lock.
        * `retry_delay`: seconds for which a task that could not be committed is held. Then the broker delivers it again, which
          is not counted as a retry.
        * `max_commit`: the longest duration of a task's transaction, at most an hour. A task that takes longer fails.

        Opens nothing. Raises SetupError for `sessions` that give none, for an endpoint of Django with sessions, and for any
        other one without.
        """
        bases, transactions = _bases_and_transactions(cls, endpoint, sessions)
        install()
        use_carriers(endpoint.name)
        options = TaskOptions(endpoint, transactions, wait, retry_delay, max_commit)
        return type(cls.__name__, bases, {"_once": options, "abstract": True, "__doc__": cls.__doc__})

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = cls.__dict__
        if isinstance(key := own.get("key"), staticmethod):
            key = key.__func__
        if key is not None:
            if not callable(key):
                raise SetupError(f"key= of task {own.get('name')} must be a function of its arguments, not {key!r:.80}")
            cls.key = staticmethod(key)
        run = own.get("run")
        if run is None:
            return
        function = run.__func__ if isinstance(run, staticmethod) else run
        wrapped = injecting(function)
        cls.run = staticmethod(wrapped) if isinstance(run, staticmethod) else wrapped
        cls._arguments = TaskArguments(function, is_bound=not isinstance(run, staticmethod))
        if "__header__" in own:
            cls.__header__ = staticmethod(cls._arguments.check)

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Check the settings of a task. Celery calls it. Raises SetupError."""
        super().on_bound(app)
        if cls._once is None:
            raise SetupError(_NEEDS_ENDPOINT)
        name = cls.name or cls.__name__
        if cls.acks_late is not True or cls.reject_on_worker_lost is not True:
            raise SetupError(
                f"task {name} must be acknowledged after its commit: remove acks_late, reject_on_worker_lost and the "
                "task_annotations that change them"
            )
        if app.conf.worker_deduplicate_successful_tasks:
            raise SetupError(
                f"task {name} cannot be used with worker_deduplicate_successful_tasks, which sends the callbacks of a repeated "
                "task again: remove the setting, as keys do the same for these tasks"
            )
        known = _STEPS.setdefault(cls._once.endpoint, step_of(cls._once.endpoint, cls._once.transactions))
        app.steps["worker"].add(known)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task once. Called directly, inside of another task, it is a function in that task's transaction."""
        unit, request = UNIT.get(), self.request
        if request.called_directly or (unit is not None and unit.request is request):
            return super().__call__(*args, **kwargs)
        if unit is not None:
            raise TransactionMisused(
                f"task {self.name} cannot be applied inside the transaction of {unit.task.name}: send it with delay(), or call "
                "it as a function, which then works in the same transaction"
            )
        if self.name in _PLAIN:
            return self.run(*args, **kwargs)
        return perform(self, self._options, args, kwargs)

    def apply_async(self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any) -> Any:
        """Send the task, as Celery does. Inside of a transaction it is sent after the commit."""
        if task_id is not None:
            check_task_id(task_id, self.name)
        capture = CAPTURE.get()
        if capture is None:
            block = None if self._once is None else self._once.transactions.open_block()
            if block is not None:
                return self._apply_in(block, {"args": args, "kwargs": kwargs, "task_id": task_id, **options})
            return super().apply_async(args, kwargs, task_id=task_id, **options)
        if options.get("connection") is not None:
            raise refuse_producer(f"task {self.name}")
        check_chord(self, options.get("chord"))
        task_id = task_id or capture.next_id()
        unit = UNIT.get()
        if self.app.conf.task_always_eager and unit is not None and unit.capture is capture:
            if isinstance(options.get("producer"), CapturingProducer):
                del options["producer"]
            unit.later.append(partial(super().apply_async, args, kwargs, task_id=task_id, **options))
            return self.AsyncResult(str(task_id))
        return super().apply_async(args, kwargs, task_id=task_id, **options)

    def _apply_in(self, block: OpenBlock, options: dict[str, Any]) -> Any:
        """Send the task in a transaction of the application."""
        options.pop("producer", None)  # of a group, whose other tasks may be sent at once
        if self.app.conf.task_always_eager:
            options["task_id"] = options["task_id"] or str(uuid4())
            block.after_commit(partial(super().apply_async, **options))
            result = self.AsyncResult(options["task_id"])
        else:
            with _capturing(block.sender):
                result = self.apply_async(**options)
        result.get = result.wait = partial(_get, block, result.get)
        return result

    def retry(self, *args: Any, throw: bool = True, **options: Any) -> Any:
        """Retry the task, as Celery does. What the task has done is rolled back first. Raises Retry."""
        unit = UNIT.get()
        if unit is None or unit.request is not self.request:
            return super().retry(*args, throw=throw, **options)
        if not throw:
            raise TransactionMisused(
                f"task {self.name} cannot retry with throw=False, because a retry rolls its transaction back: use "
                "`raise self.retry(...)`"
            )
        with capturing(unit.retries):
            return super().retry(*args, throw=throw, **options)

    def on_replace(self, sig: Signature) -> Any:
        """Put another task in the place of this one, in its transaction. Raises Ignore, as Celery does."""
        unit = UNIT.get()
        try:
            return super().on_replace(sig)
        except Exception as ignored:
            if unit is not None and type(ignored).__name__ == "Ignore":
                unit.replaced = ignored
            raise

    def add_to_chord(self, sig: Signature, lazy: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Celery has it
        """Refused inside of a transaction: the chord would be longer by one in each run. Raises TransactionMisused."""
        if CAPTURE.get() is not None:
            raise TransactionMisused(
                "add_to_chord changes the chord in the result backend at once, also if the task is rolled back: make the task "
                "part of the chord where the chord is sent"
            )
        return super().add_to_chord(sig, lazy)

    def AsyncResult(self, task_id: str, **options: Any) -> AsyncResult:  # noqa: N802 - Celery's name
        """Return the result of a task. It cannot be waited for while the transaction that sends the task is open."""
        result = super().AsyncResult(task_id, **options)
        capture = CAPTURE.get()
        if capture is not None:
            result.get = result.wait = partial(_get, capture, result.get)
        return result

    @property
    def _options(self) -> TaskOptions:
        if self._once is None:
            raise SetupError(_NEEDS_ENDPOINT)
        return self._once


def _bases_and_transactions(
    cls: type[ExactlyOnceTask], endpoint: Endpoint, sessions: Sessions | None
) -> tuple[tuple[type, ...], TaskTransactions]:
    """Return what a class of tasks is made of. Django is imported only for an endpoint of its own. Raises SetupError."""
    module = sys.modules.get("onceonly.integrations.django.endpoint")  # it is there if it has made the endpoint
    if module is None or not isinstance(endpoint, module.DjangoEndpoint):
        if sessions is None:
            raise SetupError(
                f"tasks of endpoint {endpoint.name!r} need sessions=, such as ExactlyOnceTask.of(shop, sessions): only the "
                "endpoints of onceonly.integrations.django go without"
            )
        return (cls,), SessionTransactions(endpoint, sessions)
    if sessions is not None:
        raise SetupError(
            f"tasks of endpoint {endpoint.name!r} run on Django's connection of database {endpoint.database!r}, so they have "
            "no sessions: use ExactlyOnceTask.of(shop)"
        )
    from onceonly.integrations.django.celery import AtomicTransactions, OnCommitTask  # noqa: PLC0415 - it imports Django

    return (cls, OnCommitTask), AtomicTransactions(endpoint)


def exactly_once(
    app: Celery, endpoint: Endpoint, sessions: Sessions | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Make one function a task that takes effect once: `@exactly_once(app, shop, sessions, key=...)` instead of `@app.task`.

    `wait`, `retry_delay` and `max_commit` are those of `ExactlyOnceTask.of`. All other options are those of `@app.task`.
    """
    terms = {name: options.pop(name) for name in ("wait", "retry_delay", "max_commit") if name in options}
    base = ExactlyOnceTask.of(endpoint, sessions, **terms)

    def decorate(function: Callable[..., Any]) -> Any:
        return app.task(base=base, **options)(function)

    return decorate


@contextmanager
def captured(tx: Outgoing | TaskTransaction | Transaction | Endpoint) -> Iterator[None]:
    """Store what Celery sends in a block, such as a chain, in an open transaction.

    Write `with captured(shop.enlist(session)): chain(...).delay()`, and on Django, inside of `transaction.atomic()`,
    `with captured(shop):`. There, `delay_on_commit` of any task is stored as well.

    It is sent after the commit, and dropped by a rollback. Raises SetupError if `tx` is neither what `enlist(session)` has
    returned, nor the transaction that a route receives, nor that of `shop.transaction()`, nor an endpoint of Django.
    """
    with _capturing(sender_of(tx)):
        yield


@contextmanager
def _capturing(sender: OutsideSender) -> Iterator[None]:
    current = CAPTURE.get()
    if current is not None and current.sends_in(sender):  # the transaction of the task that runs, whose ids are known
        yield
        return
    capture = Capture(sender, None)
    try:
        with capturing(capture):
            yield
    finally:
        capture.is_open = False


def delay(tx: Outgoing | TaskTransaction | Transaction | Endpoint, task: Any, /, *args: Any, **kwargs: Any) -> AsyncResult:
    """Send a task, or a signature, when a transaction commits: `delay(shop.enlist(session), send_invoice, order_id)`.

    `tx` and errors: as in `captured`.
    """
    return apply_async(tx, task, args, kwargs)


def apply_async(
    tx: Outgoing | TaskTransaction | Transaction | Endpoint, task: Any, /, args: Any = None, kwargs: Any = None, **options: Any
) -> AsyncResult:
    """Send a task, or a signature, when a transaction commits. `options` are those of Celery's `apply_async`.

    This process sends it at once after the commit if the class of the task is `ExactlyOnceTask`. Otherwise a relay does. A
    transaction of `shop.transaction()` sends it in either case.

    `tx` and errors: as in `captured`.
    """
    once: TaskOptions | None = getattr(getattr(task, "type", task), "_once", None)
    with captured(tx):
        if once is not None and isinstance(once.transactions, SessionTransactions) and not isinstance(tx, Transaction):
            once.transactions.start_sending()
        return task.apply_async(args, kwargs, **options)


class _Open(Protocol):
    @property
    def is_open(self) -> bool: ...


def _get(capture: _Open, get: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if capture.is_open:
        raise TransactionMisused(
            "the task is sent after the commit, so its result cannot be waited for before: return first, and use a callback"
        )
    return get(*args, **options)


def _end_process(**_: Any) -> None:
    """Send what a process has committed, before it ends."""
    stop_sending()


signals.worker_process_shutdown.connect(_end_process, weak=False)
signals.worker_shutdown.connect(_end_process, weak=False)
