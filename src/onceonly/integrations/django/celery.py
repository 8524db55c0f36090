"""Tasks of Celery on Django's own connection: each run is one `atomic()` block, and views store tasks in theirs."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import wraps
from typing import Any

from celery.contrib.django.task import DjangoTask
from django.db import connections, transaction
from django.db.utils import Error
from sqlalchemy.orm import Session

from onceonly.endpoint import EnlistedKey
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.celery_tasks import CAPTURE
from onceonly.integrations.django.attempts import AtomicAttempt, RollBack
from onceonly.integrations.django.borrowed import borrowed_anyway
from onceonly.integrations.django.configuration import is_test
from onceonly.integrations.django.endpoint import DjangoEndpoint, place_of_endpoint
from onceonly.integrations.django.schema import SCHEMAS
from onceonly.integrations.django.transactions import open_blocks
from onceonly.integrations.sending_thread import sending_of
from onceonly.integrations.session_transactions import RequestKey
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    SchemaMissing,
    SetupError,
    TransactionMisused,
    error_text,
)
from onceonly.sql.schema import check_within

_log = EventLogger(logging.getLogger("onceonly.transaction"))


class OnCommitTask(DjangoTask):
    """Gives tasks that take effect once the methods of Celery's own class for Django."""

    abstract = True

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Send the task after the commit: `delay`, if a transaction of the endpoint's database is open; else as Celery does."""
        self.apply_async_on_commit(args, kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None:
        """Send the task after the commit, with all options of `apply_async`."""
        own: Any = self
        if own._once.transactions.open_block() is not None:  # noqa: SLF001 - of ours
            own.apply_async(*args, **kwargs)
        else:
            super().apply_async_on_commit(*args, **kwargs)


class AtomicTransactions:
    """Tasks in `atomic()` blocks of an endpoint's database. They are `TaskTransactions`."""

    def __init__(self, endpoint: DjangoEndpoint) -> None:
        self._endpoint = endpoint
        sending_of(endpoint)  # processes that are forked from this one have one of their own
        _capture_on_commit()

    def check(self) -> None:
        """Check that the database has the tables. Leaves no connection, because further children may be forked."""
        alias = self._endpoint.database
        try:
            with borrowed_anyway(alias) as connection:
                for schema in SCHEMAS.values():
                    check_within(connection, place_of_endpoint(self._endpoint), schema)
        except SchemaMissing as error:
            words = str(error).partition(": run ")[0]
            raise SchemaMissing(f"database {alias!r} lacks tables of onceonly: run `manage.py migrate`. {words}") from error
        except Error:  # it is away
            pass
        finally:
            connections[alias].close()

    @contextmanager
    def attempt(self, max_commit: timedelta) -> Iterator["TaskBlock"]:
        """Return the block of one run."""
        with TaskBlock(self._endpoint, max_commit).closing() as attempt:
            yield attempt

    def open_block(self) -> "OpenAtomicBlock | None":
        """Return the outermost block that is open, not counting that of a `TestCase`."""
        alias = self._endpoint.database
        found = open_blocks(alias)
        return OpenAtomicBlock(self._endpoint, found[0]) if found else None

    def start_sending(self) -> None:
        """Start the thread that sends, unless this is a test."""
        if not is_test():
            sending_of(self._endpoint).start()


class OpenAtomicBlock:
    """A block of the application. It is an `OpenBlock`."""

    def __init__(self, endpoint: DjangoEndpoint, block: object) -> None:
        self.sender = endpoint
        self._block = block

    @property
    def is_open(self) -> bool:
        return any(each is self._block for each in open_blocks(self.sender.database))

    def after_commit(self, call: Callable[[], object]) -> None:
        transaction.on_commit(call, using=self.sender.database)


class TaskBlock(AtomicAttempt):
    """One run of a task in a block. It is a `TaskAttempt`."""

    def __init__(self, endpoint: DjangoEndpoint, max_commit: timedelta) -> None:
        super().__init__(endpoint)
        self.entry: EnlistedKey | None = None
        self._max_commit = max_commit

    def open(self, asked: RequestKey | None) -> DjangoEndpoint | bytes:
        """Begin the block, and take the key if there is one."""
        _renew(connections[self.alias])
        self.begin()
        if asked is None:
            return self.endpoint
        self.entry = entry = self.take(asked.key, asked.asked, scope=asked.scope, wait=asked.wait, max_commit=self._max_commit)
        if entry.is_known:
            return entry.answer if isinstance(entry.answer, bytes) else b""
        return self.endpoint

    def injected(self, kind: type) -> object:
        """Refuse it: Django's transaction belongs to the thread."""
        instead = "use the ORM of Django" if kind is Session else "use `send` and `publish` of the endpoint"
        raise SetupError(
            f"tasks of endpoint {self.endpoint.name!r} run on Django's connection, so a parameter annotated {kind.__name__} "
            f"cannot be injected: remove it, and {instead}"
        )

    def flush(self) -> None:
        """Do nothing: the ORM of Django executes each statement at once."""

    def commit(self, answer: bytes) -> None:
        """Commit all. Raises as `AtomicAttempt.commit`, and TransactionMisused."""
        self._check()
        try:
            super().commit(answer)
        except Exception as error:
            if not self._is_committed:
                raise
            fields = {"endpoint": self.endpoint.name, "reason": error_text(error)}
            _log.error("callback of on_commit failed", exc_info=error, extra=fields)

    @contextmanager
    def closing(self) -> "Iterator[TaskBlock]":
        """Roll back what was not committed, and leave no connection whose transaction may be open."""
        was_open = connections[self.alias].in_atomic_block
        try:
            with super().closing():
                yield self
        finally:
            django = connections[self.alias]
            if not was_open and (self._is_unsettled or django.in_atomic_block):
                _discard(self.alias)

    def _check(self) -> None:
        """Check that the block can be committed."""
        django = connections[self.alias]
        if not django.atomic_blocks or django.atomic_blocks[-1] is not self._atomic:
            raise TransactionMisused(
                "this task has left a block of `transaction.atomic()` open, so nothing was committed: enter it by `with`"
            )
        if django.closed_in_transaction:
            raise TransactionMisused("this task has closed its connection, so nothing was committed: remove connection.close()")
        if django.needs_rollback:
            own = django.connection
            self._leave(RollBack, RollBack())
            if django.connection is not own:  # Django closes one that cannot roll back, and opens another
                raise CommitFailed("the connection to the database was lost in this task")
            raise CommitRefused(
                "the transaction of this task has to be rolled back, so nothing was committed: an exception was caught outside "
                "of the `atomic()` block that it has left, or the task has called set_rollback(True). Enclose what may fail in "
                "`with transaction.atomic():`, and raise an exception to undo a task"
            )


def _renew(django: Any) -> None:
    """Close a connection that has failed, and have CONN_HEALTH_CHECKS applied, as Django does before each request.

    How long a connection is kept is up to Celery, and to its CELERY_DB_REUSE_MAX.
    """
    if not django.in_atomic_block:
        django.health_check_done = False
        if django.errors_occurred:
            django.close()


def _discard(alias: str) -> None:
    """Close a connection whatever its state is, so that its server rolls back."""
    django = connections[alias]
    with suppress(Exception):
        django.close()
    if django.in_atomic_block:
        del connections[alias]


def _capture_on_commit() -> None:
    """Have `delay_on_commit` of all tasks captured where something captures what Celery sends. Nothing else changes."""
    if getattr(DjangoTask.apply_async_on_commit, "is_onceonly", False):
        return
    for name in ("delay", "apply_async"):
        setattr(DjangoTask, f"{name}_on_commit", _captured_or(name, getattr(DjangoTask, f"{name}_on_commit")))


def _captured_or(name: str, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def on_commit(self: Any, *args: Any, **kwargs: Any) -> None:
        if CAPTURE.get() is None:
            original(self, *args, **kwargs)
        else:
            getattr(self, name)(*args, **kwargs)

    on_commit.is_onceonly = True  # type: ignore[attr-defined]
    return on_commit
