"""Serving one request of Django once, in an `atomic()` block; see `request_rules`.

Within another block, such as that of ATOMIC_REQUESTS, Django commits the outer one before it sends the response.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.db import connections, transaction
from django.http import HttpResponse
from django.http.request import HttpRequest, RawPostDataException

from onceonly.integrations.django.attempts import AtomicAttempt
from onceonly.integrations.django.endpoint import DjangoEndpoint
from onceonly.integrations.django.responses import complete, response_of
from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import ReceivedRequest, RequestRules
from onceonly.integrations.stored_responses import IdempotencyResponse, decoded, encoded
from onceonly.integrations.wsgi_bodies import key_lines
from onceonly.model.errors import ConflictError, InvalidKey, RetryableError, TransactionMisused


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


class DjangoAttempt(AtomicAttempt):
    """One request: opened at most once, then committed, or rolled back at the end of `closing`."""

    def __init__(self, rules: DjangoRules, request: Any, received: ReceivedRequest) -> None:
        super().__init__(rules.endpoint)
        self._rules = rules
        self._request = request
        self._received = received

    def open(self) -> None:
        """Begin the block, and take the key if there is one. Raises Instead for a stored response, and for a problem.

        Raises CommitFailed if the database cannot be reached.
        """
        try:
            self._open()
        except RequestProblem as refused:
            raise Instead(refused.response) from refused

    def _open(self) -> None:
        rules, received = self._rules, self._received
        compared = rules.compared(self._request, received)  # may ask the database for the user
        scope = rules.scope_of(self._request)
        self.begin()
        if received.key is None:
            return
        try:
            entry = self.take(received.key, compared, scope=scope, wait=rules.wait, max_commit=rules.max_commit)
        except (InvalidKey, ConflictError) as error:
            raise rules.refusal(error, received) from error
        except RetryableError as error:
            raise rules.failure(error, received) from error
        if entry.is_known:
            answer = entry.answer
            raise Instead(decoded(answer if isinstance(answer, bytes) else b""))

    def commit(self, answer: bytes) -> None:
        """Commit rows, messages, key and answer. Does nothing if the view has asked Django to roll back.

        Raises as `AtomicAttempt.commit`.
        """
        if not connections[self.alias].needs_rollback:
            super().commit(answer)

    def roll_back(self) -> None:
        """Have nothing committed, whatever is returned."""
        if self.is_open:
            transaction.set_rollback(True, using=self.alias)
