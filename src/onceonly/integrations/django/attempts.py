"""One piece of work in an `atomic()` block, with or without a key: opened, protected, and committed once.

Who commits is Django's `atomic()`. Within another block, such as that of ATOMIC_REQUESTS, this one is a savepoint, and Django
commits the outer one.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Self

from django.db import connections, transaction
from django.db.utils import Error
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from onceonly.endpoint import EnlistedKey
from onceonly.integrations.django.borrowed import NO_AUTOCOMMIT, borrowed, driver_error, is_lost
from onceonly.integrations.django.endpoint import DjangoEndpoint, place_of_endpoint, take_key, using_key
from onceonly.integrations.django.transactions import AtomicKey
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OnceOnlyError, OutcomeUnknown, SetupError, leaves
from onceonly.sql.dialect import DatabaseFailure
from onceonly.sql.store.enlistment import shared_dialect
from onceonly.sql.translation import translated

_OUTAGES = frozenset(
    {DatabaseFailure.LOCKED, DatabaseFailure.HELD, DatabaseFailure.UNABLE, DatabaseFailure.READ_ONLY, DatabaseFailure.SESSION}
)
"""Failures of a statement that the application has not caused: a repetition may succeed."""


class AtomicAttempt:
    """One attempt at something, in a block of its own: `begin`, `take` a key, the work inside `work`, then `commit`."""

    def __init__(self, endpoint: DjangoEndpoint) -> None:
        self.endpoint = endpoint
        self._atomic: Any = None
        self._key: tuple[EnlistedKey, AtomicKey] | None = None
        self._using = ExitStack()
        self._is_committed = False
        self._is_unsettled = False
        """Whether the end of the block has raised something, so that the state of its connection is unknown."""

    @property
    def is_open(self) -> bool:
        return self._atomic is not None

    @property
    def alias(self) -> str:
        return self.endpoint.database

    def begin(self) -> None:
        """Begin the block. Raises CommitFailed if the database cannot be reached, and SetupError if nothing would commit it."""
        atomic, django = transaction.atomic(using=self.alias), connections[self.alias]
        with self._translated():
            if not django.in_atomic_block and not django.get_autocommit():
                raise SetupError(NO_AUTOCOMMIT.format(alias=self.alias))
            atomic.__enter__()
        self._atomic = atomic
        if not connections[self.alias].savepoint_ids:
            transaction.on_commit(self._note_commit, using=self.alias)

    def take(
        self, key: str, request: object, *, scope: str | None, wait: float | None, max_commit: timedelta | None
    ) -> EnlistedKey:
        """Take a key in the block. If it is known, there is nothing to do. Errors are those of `Endpoint.atomic`."""
        with self._translated():
            entry, taken = take_key(self.endpoint, key, request, scope=scope, wait=wait, max_commit=max_commit)
        if not entry.is_known:
            self._key = (entry, taken)
            self._using.enter_context(using_key(self.endpoint, entry, taken))
        return entry

    @contextmanager
    def work(self) -> Iterator[None]:
        """Enclose the application's work. Raises ConflictError and CommitFailed for what the database could not do now."""
        try:
            yield
        except Exception as error:
            if (failure := self._outage(error)) is not None:
                raise failure from error
            raise

    def commit(self, answer: bytes) -> None:
        """Commit rows, messages, key and answer.

        Raises CommitRefused, CommitFailed, ConflictError, OutcomeUnknown, and what callbacks of `on_commit` raise.
        """
        self._using.close()
        with self._translated():
            if self._key is not None:
                entry, key = self._key
                entry.answer = answer
                key.finish()
            else:  # with a key, the statement that stores the answer fails in an aborted transaction
                borrowed(self.alias, place_of_endpoint(self.endpoint)).execute(select(1))
        # Crash here, "before-commit": 1 nothing happened, 2 the work comes again, 3 it is done anew.
        with self._translated(committing=True):
            self._leave(None, None)
        # Crash here, "after-commit": 1 committed, 2 nobody was told, 3 what comes again gets the stored answer.

    @contextmanager
    def closing(self) -> Iterator[Self]:
        """Enclose the attempt, and roll back what was not committed."""
        try:
            yield self
        finally:
            self._using.close()
            if self._atomic is not None:
                self._leave(RollBack, RollBack())

    def _leave(self, kind: type[Exception] | None, error: Exception | None) -> None:
        atomic, self._atomic, self._is_unsettled = self._atomic, None, True
        atomic.__exit__(kind, error, None)
        self._is_unsettled = False

    def _note_commit(self) -> None:
        self._is_committed = True

    @contextmanager
    def _translated(self, *, committing: bool = False) -> Iterator[None]:
        """Translate errors of the database. While `committing`, only what the database says for sure is definite."""
        try:
            yield
        except (Error, DBAPIError, OSError) as error:
            if self._is_committed:  # a callback of `on_commit` has raised it
                raise
            unknown = OutcomeUnknown if committing else CommitFailed
            found = driver_error(error)
            if found is None:
                raise unknown(str(error)) from error
            dialect = shared_dialect(place_of_endpoint(self.endpoint).url)
            if committing and is_lost(self.alias, found):
                raise OutcomeUnknown(str(error)) from error
            asked = {"locked": ConflictError, "refused": CommitRefused, "unknown": unknown}
            raise translated(found, dialect, **asked, committing=committing) from error

    def _outage(self, error: Exception) -> OnceOnlyError | None:
        """Return what an exception means if the database could not do something now; None for the application's own."""
        dialect = shared_dialect(place_of_endpoint(self.endpoint).url)
        for each in leaves(error):
            found = driver_error(each)
            if found is None:
                continue
            if dialect.classify(found) in _OUTAGES or is_lost(self.alias, found):
                return translated(found, dialect, locked=ConflictError, unknown=CommitFailed)
        return None


class RollBack(Exception):
    """Has `atomic()` roll back."""
