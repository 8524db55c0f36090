"""What all frameworks have in common: the options of requests that are done once, how two are compared, and what refuses one.

read      the key and the whole body, within limits; nothing is open yet
open      the transaction, with the key: a request that was done before gets the response that is kept
respond   the endpoint's own work, up to a response in memory
commit    data, messages, key and response, together
then      the first byte is sent

What is *returned* and is to be stored is committed and kept. What is *raised*, and every other response, is rolled back and
kept nowhere: a retry is served anew. `store_if` decides; transient answers and 5xx are not stored.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, NamedTuple, TypeVar

from onceonly.endpoint import Endpoint
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.fingerprints import body_form, query_form
from onceonly.integrations.idempotency_keys import KEY_HEADER, key_of_request
from onceonly.integrations.problems import RequestProblem
from onceonly.model.errors import (
    CommitRefused,
    ConflictError,
    InvalidKey,
    KeyReused,
    OutcomeUnknown,
    RetryableError,
    TransactionMisused,
    error_text,
)

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1): their requests get no transaction."""
TRANSIENT = frozenset({408, 423, 425, 429})
"""Answers to clients that may be others a moment later: timeout, locked, too early, too many requests."""
SERVER_ERROR = 500
StoreIf = Callable[[int], bool]
"""Returns whether a response with this status is stored for the key, and its transaction committed."""
_log = EventLogger(logging.getLogger("onceonly.http"))
_Request = TypeVar("_Request")
"""A request as the framework has it."""


class ReceivedRequest(NamedTuple):
    """What was received of one request. `path` is decoded, `query` is not, and `content_types` are the lines of that header."""

    method: str
    path: str
    query: bytes
    content_types: Sequence[str]
    is_encoded: bool
    key: str | None
    body: bytes

    @property
    def same_key(self) -> str:
        """The words that ask the client to send the key again."""
        return "" if self.key is None else f", with the same {KEY_HEADER}"


def is_final(status: int) -> bool:
    """Return whether an answer is stored by default: not 408, 423, 425, 429 and 5xx, which a repetition may not get."""
    return status < SERVER_ERROR and status not in TRANSIENT


@dataclass(frozen=True, kw_only=True)
class RequestRules(Generic[_Request]):
    """How an endpoint serves requests.

    Without `key_required` a request may come without a key: it is a transaction as well, and a repeated one is done again.
    `principal` is the caller: the same key from another caller is refused. `scope` gives each client keys of its own: the same
    key in another scope is another key; None: no scope. `fingerprint` replaces the comparison of query and body. `store_if`
    decides by the status of a response whether it is stored; if not, the transaction is rolled back. A body may have `max_body`
    bytes. A request whose key is taken waits `wait` seconds for who has it. It is committed within `max_commit` of its
    transaction's beginning, or not at all; the endpoint's own unless given. Raises TransactionMisused for times that no
    transaction may have, and for what is not a function.
    """

    endpoint: Endpoint
    key_required: bool = True
    principal: Callable[[_Request], str | None]
    scope: Callable[[_Request], str | None] | None = None
    max_body: int = 1 << 20
    wait: float = 2.0
    max_commit: timedelta | None = None
    fingerprint: Callable[[_Request, bytes], bytes | str] | None = None
    store_if: StoreIf = is_final

    def __post_init__(self) -> None:
        for name, given in (("fingerprint", self.fingerprint), ("store_if", self.store_if)):
            if given is not None and not callable(given):
                raise TransactionMisused(f"{name}= must be a function, not {type(given).__name__}")
        self.endpoint.transaction(max_commit=self.max_commit, wait=self.wait)

    def key(self, lines: Sequence[str]) -> str | None:
        """Return the key by the header's lines. Raises RequestProblem."""
        return key_of_request(lines, required=self.key_required)

    def too_large(self) -> RequestProblem:
        return RequestProblem("too-large", f"the body is longer than the limit of {self.max_body:,} bytes: send less")

    def scope_of(self, request: _Request) -> str | None:
        return None if self.scope is None else self.scope(request)

    def compared(self, request: _Request, received: ReceivedRequest) -> object:
        """Return what must be equal whenever a key comes again; of all of it only a hash is kept."""
        return [received.method, received.path, self.principal(request), self._fingerprint(request, received)]

    def is_stored(self, status: int) -> bool:
        """Return whether a response is committed. A 5xx never is."""
        return status < SERVER_ERROR and self.store_if(status)

    def refusal(self, error: InvalidKey | ConflictError, received: ReceivedRequest) -> RequestProblem:
        """Return the problem for what refuses the key of a request."""
        if isinstance(error, KeyReused):
            return RequestProblem(
                "key-reused", f"this {KEY_HEADER} was used for another request: send a new one with each new request"
            )
        if isinstance(error, InvalidKey):
            return RequestProblem("malformed-key", str(error))
        if received.key is None:
            return self.failure(error, received)
        detail = f"a request with this {KEY_HEADER} is in progress, or the database is busy: repeat it to get its response"
        return RequestProblem("in-progress", detail, retry=True)

    def failure(self, error: RetryableError | ConflictError, received: ReceivedRequest) -> RequestProblem:
        """Return the problem for what has ended a request, and log it."""
        if isinstance(error, CommitRefused):
            return self._refused(error, received)
        if not isinstance(error, OutcomeUnknown):
            _log.warning("request not committed", extra=self._log_fields(error, received))
            return RequestProblem("not-done", f"this request changed nothing: repeat it{received.same_key}", retry=True)
        _log.warning("request commit outcome unknown", extra=self._log_fields(error, received))
        if received.key is None:
            return RequestProblem("unknown", f"the outcome is unknown: check the data first, as it has no {KEY_HEADER}")
        return RequestProblem("unknown", f"the outcome is unknown: repeat it with the same {KEY_HEADER}", retry=True)

    def _fingerprint(self, request: _Request, received: ReceivedRequest) -> object:
        if self.fingerprint is None:
            body = body_form(received.content_types, received.body, is_encoded=received.is_encoded)
            return [query_form(received.query), body]
        found = self.fingerprint(request, received.body)
        if not isinstance(found, bytes | str):
            raise TransactionMisused(f"fingerprint= must return bytes or a str, not {type(found).__name__}")
        return ["own", found.hex() if isinstance(found, bytes) else found]

    def _refused(self, error: CommitRefused, received: ReceivedRequest) -> RequestProblem:
        """Report changes that the database rejected. A retry cannot help."""
        cause = error.__cause__ or error  # no line of the application is in its traceback: it had returned
        told = "".join(traceback.format_exception_only(cause))
        _log.error("request commit refused", extra=self._log_fields(error, received) | {"traceback": told})
        detail = "the database rejected the changes of this request, so it changed nothing: repeating it does not help"
        return RequestProblem("commit-refused", detail)

    def _log_fields(self, error: Exception, received: ReceivedRequest) -> dict[str, str]:
        request = f"{received.method} {received.path}"
        return {"endpoint": self.endpoint.name, "request": request, "reason": error_text(error)}
