"""Where tasks have their transactions: the protocol that `celery_tasks` works with, and sessions of SQLAlchemy.

Django's own connection is the other implementation: see `onceonly.integrations.django.celery`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy.orm import Session

from onceonly.endpoint import Endpoint, EnlistedKey
from onceonly.endpoint.sender import OutsideSender
from onceonly.integrations.sending_thread import check_sessions_of, note_sessions, sending_of
from onceonly.integrations.session_transactions import (
    RequestKey,
    RequestTransaction,
    SessionRequest,
    Sessions,
    check_sessions,
    session_of_request,
)


class TaskAttempt(Protocol):
    """The transaction of one run of a task: `open`, the task's function inside `work`, then `commit`."""

    @property
    def entry(self) -> EnlistedKey | None:
        """The key, new or known. None before `open`, and without a key."""

    def open(self, asked: RequestKey | None) -> OutsideSender | bytes:
        """Begin, and take the key if there is one. Returns what sends messages, or the stored answer of a known key.

        Raises KeyReused, InvalidKey, ConflictError, CommitFailed, SetupError.
        """

    def work(self) -> AbstractContextManager[None]:
        """Enclose the task's function. Raises ConflictError and CommitFailed for what the database could not do now."""

    def injected(self, kind: type) -> object:
        """Return what a parameter with this annotation receives: `Session` or `RequestTransaction`. Raises SetupError."""

    def flush(self) -> None:
        """Write what the function has left to be written, so that what the database refuses is an exception of the task."""

    def commit(self, answer: bytes) -> None:
        """Commit rows, messages, key and answer. Raises CommitRefused, CommitFailed, ConflictError, OutcomeUnknown."""


class OpenBlock(Protocol):
    """A transaction of the caller that is open around a call: what sends messages in it, and whether it still is."""

    @property
    def sender(self) -> OutsideSender:
        """What sends messages in it."""

    @property
    def is_open(self) -> bool:
        """Whether it is still open."""

    def after_commit(self, call: Callable[[], object]) -> None:
        """Call this after the commit. A rollback drops it."""


class TaskTransactions(Protocol):
    """The transactions of the tasks of one class."""

    def check(self) -> None:
        """Check, when a worker starts, that tasks can be committed. Raises SetupError, but not for a server that is away."""

    def attempt(self, max_commit: timedelta) -> AbstractContextManager[TaskAttempt]:
        """Return the transaction of one run, which is rolled back at the end if it was not committed."""

    def open_block(self) -> OpenBlock | None:
        """Return the transaction that is open around a call outside of tasks. None where the caller has to name it."""

    def start_sending(self) -> None:
        """Have this process send what is committed."""


class SessionAttempt(SessionRequest):
    """One run of a task in a session. It is a `TaskAttempt`."""

    def __init__(self, endpoint: Endpoint, session: Session, max_commit: timedelta) -> None:
        super().__init__(endpoint, session, max_commit, what="task")
        self._opened: RequestTransaction | None = None

    def open(self, asked: RequestKey | None) -> RequestTransaction | bytes:
        opened = super().open(asked)
        self._opened = opened if isinstance(opened, RequestTransaction) else None
        return opened

    def injected(self, kind: type) -> object:
        return self._session if kind is Session else self._opened

    def flush(self) -> None:
        self._session.flush()


class SessionTransactions:
    """Tasks in sessions of SQLAlchemy. They are `TaskTransactions`. Raises SetupError for `sessions` that give none."""

    def __init__(self, endpoint: Endpoint, sessions: Sessions) -> None:
        check_sessions(sessions)
        note_sessions(endpoint, sessions)
        self._endpoint = endpoint
        self._sessions: Any = sessions

    def check(self) -> None:
        check_sessions_of(self._endpoint)

    @contextmanager
    def attempt(self, max_commit: timedelta) -> Iterator[SessionAttempt]:
        with session_of_request(self._sessions) as session:
            yield SessionAttempt(self._endpoint, session, max_commit)

    def open_block(self) -> None:
        return None

    def start_sending(self) -> None:
        sending_of(self._endpoint).start()
