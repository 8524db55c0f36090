"""Serving one request of Django once, in an `atomic()` block; see `request_rules`.

Who commits is Django's `atomic()`. Within another block, such as that of ATOMIC_REQUESTS, this one is a savepoint, and Django
commits the outer one before it sends the response.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import connections, transaction
from django.db.utils import Error
from django.http import HttpResponse
from django.http.request import HttpRequest, RawPostDataException
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from onceonly.endpoint import EnlistedKey
from onceonly.integrations.django.borrowed import borrowed, driver_error, is_lost
from onceonly.integrations.django.endpoint import DjangoEndpoint, place_of_endpoint, take_key, using_key
from onceonly.integrations.django.responses import complete, response_of
from onceonly.integrations.django.transactions import AtomicKey
from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import ReceivedRequest, RequestRules
from onceonly.integrations.stored_responses import IdempotencyResponse, decoded, encoded
from onceonly.integrations.wsgi_bodies import key_lines
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    InvalidKey,
    OnceOnlyError,
    OutcomeUnknown,
    RetryableError,
    TransactionMisused,
    leaves,
)
from onceonly.sql.dialect import DatabaseFailure
from onceonly.sql.store.enlistment import shared_dialect
from onceonly.sql.translation import translated

_OUTAGES = frozenset(
    {DatabaseFailure.LOCKED, DatabaseFailure.HELD, DatabaseFailure.UNABLE, DatabaseFailure.READ_ONLY, DatabaseFailure.SESSION}
)
"""Failures of a statement that the application has not caused: a repetition may succeed."""


class Instead(BaseException):
    """Ends a view whose request has its response already. No handler of the application catches it."""

    def __init__(self, response: IdempotencyResponse) -> None:
        super().__init__(response.status)
        self.response = response


@dataclass(frozen=True, kw_only=True)
class DjangoRules(RequestRules[Any]):
    """How an endpoint serves requests of Django; see `RequestRules`."""

    endpoint: DjangoEndpoint

    def serve(self, request: Any, respond: "Callable[[DjangoAttempt], HttpResponse]") -> HttpResponse:
        """Return the response that `respond` makes, once all that it promises is committed; or a stored one, or a problem.

        `respond` opens the attempt. A response for which it was not opened is returned as it is. Raises what `respond` raises.
        """
        try:
            return self._serve(request, respond)
        except RequestProblem as refused:
            return response_of(refused.response)

    def _serve(self, request: Any, respond: "Callable[[DjangoAttempt], HttpResponse]") -> HttpResponse:
        received = self._received(request)
        try:
            with DjangoAttempt(self, request, received).closing() as attempt:
                with attempt.work():
                    response, stored = respond(attempt), None
                    if attempt.is_open:
                        response, stored = complete(response)
                if stored is not None and self.is_stored(stored.status):
                    attempt.commit(encoded(stored.status, stored.headers, stored.body))
                return response
        except Instead as instead:
            return response_of(instead.response)
        except (RetryableError, ConflictError) as error:
            raise self.failure(error, received) from error

    def _received(self, request: Any) -> ReceivedRequest:
        """Read the request. Raises RequestProblem, and TransactionMisused if something has read its body and left nothing."""
        key = self.key(key_lines(request.META))
        content_type = request.META.get("CONTENT_TYPE")
        return ReceivedRequest(
            method=str(request.method),
            path=request.path,
            query=str(request.META.get("QUERY_STRING", "")).encode("latin-1", "replace"),
            content_types=[content_type] if content_type else [],
            is_encoded="HTTP_CONTENT_ENCODING" in request.META,
            key=key,
            body=self._body(request),
        )

    def _body(self, request: Any) -> bytes:
        length = str(request.META.get("CONTENT_LENGTH") or "")
        if length.isdigit() and int(length) > self.max_body:
            raise self.too_large()
        http_request: HttpRequest = getattr(request, "_request", request)  # that of Django REST framework has one
        try:
            body: bytes = http_request.body
        except RawPostDataException:
            return _parsed_form(http_request)
        except RequestDataTooBig as error:  # by DATA_UPLOAD_MAX_MEMORY_SIZE
            raise self.too_large() from error
        except OSError as error:
            raise RequestProblem("incomplete", "the request ended before its body was complete: send it again") from error
        if len(body) > self.max_body:
            raise self.too_large()
        return body


def _parsed_form(request: HttpRequest) -> bytes:
    """Return what identifies a form with files, which is parsed while it is read. The token of CSRF is not compared."""
    if not hasattr(request, "_post") or request.content_type != "multipart/form-data":
        raise TransactionMisused(
            "the body of this request was read before idempotent(...), and not kept: read `request.body` first, or decorate "
            "the view that reads it"
        )
    parts = [
        (name, value) for name in sorted(request.POST) if name != "csrfmiddlewaretoken" for value in request.POST.getlist(name)
    ]
    for name in sorted(request.FILES):
        for file in request.FILES.getlist(name):
            digest = hashlib.sha256()
            for chunk in file.chunks():
                digest.update(chunk)
            file.seek(0)
            parts.append((name, f"{file.name} {digest.hexdigest()}"))
    return repr(parts).encode()


class DjangoAttempt:
    """One request: opened at most once, then committed, or rolled back at the end of `closing`."""

    def __init__(self, rules: DjangoRules, request: Any, received: ReceivedRequest) -> None:
        self._rules = rules
        self._endpoint = rules.endpoint
        self._request = request
        self._received = received
        self._atomic: Any = None
        self._key: tuple[EnlistedKey, AtomicKey] | None = None
        self._using = ExitStack()
        self._is_committed = False

    @property
    def is_open(self) -> bool:
        return self._atomic is not None

    def open(self) -> None:
        """Begin the block, and take the key if there is one. Raises Instead for a stored response, and for a problem.

        Raises CommitFailed if the database cannot be reached.
        """
        try:
            self._open()
        except RequestProblem as refused:
            raise Instead(refused.response) from refused

    def _open(self) -> None:
        rules, received, alias = self._rules, self._received, self._endpoint.database
        compared = rules.compared(self._request, received)  # may ask the database for the user
        scope = rules.scope_of(self._request)
        atomic = transaction.atomic(using=alias)
        with self._translated():
            atomic.__enter__()
        self._atomic = atomic
        if not connections[alias].savepoint_ids:
            transaction.on_commit(self._note_commit, using=alias)
        if received.key is None:
            return
        try:
            entry, key = take_key(
                self._endpoint, received.key, compared, scope=scope, wait=rules.wait, max_commit=rules.max_commit
            )
        except (InvalidKey, ConflictError) as error:
            raise rules.refusal(error, received) from error
        except RetryableError as error:
            raise rules.failure(error, received) from error
        if entry.is_known:
            answer = entry.answer
            raise Instead(decoded(answer if isinstance(answer, bytes) else b""))
        self._key = (entry, key)
        self._using.enter_context(using_key(self._endpoint, entry, key))

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
        """Commit rows, messages, key and answer. Does nothing if the view has asked Django to roll back.

        Raises CommitRefused, CommitFailed, ConflictError, OutcomeUnknown, and what callbacks of `on_commit` raise.
        """
        alias = self._endpoint.database
        self._using.close()
        if connections[alias].needs_rollback:
            return
        with self._translated():
            if self._key is not None:
                entry, key = self._key
                entry.answer = answer
                key.finish()
            else:  # with a key, the statement that stores the answer fails in an aborted transaction
                borrowed(alias, place_of_endpoint(self._endpoint)).execute(select(1))
        atomic, self._atomic = self._atomic, None
        # Crash here, "before-commit": 1 nothing happened, 2 the client repeats its request, 3 it is handled anew.
        with self._translated(committing=True):
            atomic.__exit__(None, None, None)
        # Crash here, "after-commit": 1 committed, 2 no byte was sent, 3 the repeated request gets the stored response.

    def roll_back(self) -> None:
        """Have nothing committed, whatever is returned."""
        if self.is_open:
            transaction.set_rollback(True, using=self._endpoint.database)

    @contextmanager
    def closing(self) -> Iterator["DjangoAttempt"]:
        """Enclose the attempt, and roll back what was not committed."""
        try:
            yield self
        finally:
            self._using.close()
            if self._atomic is not None:
                self._atomic.__exit__(RollBack, RollBack(), None)

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
            dialect = shared_dialect(place_of_endpoint(self._endpoint).url)
            if committing and is_lost(self._endpoint.database, found):
                raise OutcomeUnknown(str(error)) from error
            asked = {"locked": ConflictError, "refused": CommitRefused, "unknown": unknown}
            raise translated(found, dialect, **asked, committing=committing) from error

    def _outage(self, error: Exception) -> OnceOnlyError | None:
        """Return what an exception means if the database could not do something now; None for the application's own."""
        dialect = shared_dialect(place_of_endpoint(self._endpoint).url)
        for each in leaves(error):
            found = driver_error(each)
            if found is None:
                continue
            if dialect.classify(found) in _OUTAGES or is_lost(self._endpoint.database, found):
                return translated(found, dialect, locked=ConflictError, unknown=CommitFailed)
        return None


class RollBack(Exception):
    """Has `atomic()` roll back."""
