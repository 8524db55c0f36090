"""Serving one request of a synchronous framework once, in a session of the caller; see `request_rules`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceonly.endpoint import EnlistedKey
from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import ReceivedRequest, RequestRules
from onceonly.integrations.session_transactions import (
    RequestKey,
    RequestTransaction,
    SessionRequest,
    Sessions,
    check_sessions,
    session_of_request,
)
from onceonly.integrations.stored_responses import IdempotencyResponse, decoded, encoded
from onceonly.model.errors import CommitRefused, ConflictError, InvalidKey, RetryableError

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


@dataclass(frozen=True, kw_only=True)
class SessionRules(RequestRules[_Request]):
    """How an endpoint serves requests in sessions of the caller; see `RequestRules`. Raises SetupError."""

    sessions: Sessions

    def __post_init__(self) -> None:
        check_sessions(self.sessions)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class SessionServer(Generic[_Request, _Response]):
    """Serves requests of one framework.

    `complete` gives a response as it is stored, all of its body included. `is_handled` returns whether the application has a
    handler of its own for a commit that the database refuses. `entered` gets the key, new or known, before the work.
    """

    rules: SessionRules[_Request]
    complete: Callable[[_Response], IdempotencyResponse]
    is_handled: Callable[[CommitRefused], bool] = lambda _error: False
    entered: Callable[[EnlistedKey], object] = lambda _entry: None

    def serve(
        self,
        request: _Request,
        receive: Callable[[], ReceivedRequest],
        respond: Callable[[RequestTransaction], _Response],
    ) -> _Response | IdempotencyResponse:
        """Return the response that `respond` makes, once all that it promises is committed; or a stored one, or a problem.

        `receive` reads the request. Raises what `respond` raises, and CommitRefused to its handler.
        """
        try:
            return self._attempt(request, receive(), respond)
        except RequestProblem as refused:
            return refused.response

    def _attempt(
        self, request: _Request, received: ReceivedRequest, respond: Callable[[RequestTransaction], _Response]
    ) -> _Response | IdempotencyResponse:
        rules = self.rules
        try:
            with session_of_request(rules.sessions) as session:
                attempt = SessionRequest(rules.endpoint, session, rules.max_commit)
                opened = self._opened(attempt, request, received)
                if attempt.entry is not None:
                    self.entered(attempt.entry)
                if isinstance(opened, bytes):
                    return decoded(opened)
                with attempt.work():
                    response = respond(opened)
                    complete = self.complete(response)
                if rules.is_stored(complete.status):
                    attempt.commit(encoded(complete.status, complete.headers, complete.body))
                return response
        except (RetryableError, ConflictError) as error:
            if isinstance(error, CommitRefused) and self.is_handled(error):
                raise
            raise rules.failure(error, received) from error

    def _opened(self, attempt: SessionRequest, request: _Request, received: ReceivedRequest) -> RequestTransaction | bytes:
        rules, asked = self.rules, None
        if received.key is not None:
            asked = RequestKey(received.key, rules.scope_of(request), rules.compared(request, received), rules.wait)
        try:
            return attempt.open(asked)
        except (InvalidKey, ConflictError) as error:
            raise rules.refusal(error, received) from error
