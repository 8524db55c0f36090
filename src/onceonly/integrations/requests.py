"""Serving one HTTP request once, whichever framework has routed it.

read      the key and the whole body, within limits; nothing is open yet
open      the transaction, with the key: a request that was done before gets the response that is kept
respond   the endpoint's own work, up to a response in memory
commit    data, messages, key and response, together
then      the first byte is sent

What is *returned* and is to be stored is committed and kept. What is *raised*, and every other response, is rolled back and
kept nowhere: a retry is served anew. `store_if` decides; transient answers and 5xx are not stored.
"""

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from onceonly.endpoint import Endpoint, Transaction
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.fingerprints import body_form, query_form
from onceonly.integrations.idempotency_responses import complete, decode_response, encode_response
from onceonly.integrations.problems import RequestProblem
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    InvalidKey,
    KeyReused,
    OutcomeUnknown,
    RetryableError,
    TransactionMisused,
    error_text,
)

KEY_HEADER = "Idempotency-Key"
KEY_PATTERN = r'^("([ !#-\[\]-~]|\\["\\])+"|[!#-+\--:<-\[\]-~]+)$'
"""The values that are a key, as a regular expression of JSON Schema (ECMA 262)."""
_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-+\--:<-\[\]-~]+")
_ESCAPED = re.compile(r"\\(.)")
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that change nothing (RFC 9110, 9.2.1): their requests get no transaction."""
TRANSIENT = frozenset({408, 423, 425, 429})
"""Answers to clients that may be others a moment later: timeout, locked, too early, too many requests."""
SERVER_ERROR = 500
CONNECT_SECONDS = 10.0
"""Seconds that the store may take to be reached, next to what is waited for another request with the key."""
Respond = Callable[[Request], Awaitable[Response]]
Principal = Callable[[Request], str | None]
"""Returns the principal of a request, as the scope of its idempotency key. None: the client is not identified."""
Fingerprint = Callable[[Request, bytes], bytes | str]
"""Returns what is equal for equal requests, of a request and its body."""
StoreIf = Callable[[int], bool]
"""Returns whether a response with this status is stored for the key, and its transaction committed."""
_ATTEMPT = "onceonly.attempt"
_log = EventLogger(logging.getLogger("onceonly.http"))


class MalformedKey(ValueError):
    """The header is there and holds no key that could be understood. The message is for the client."""


def read_key(lines: Sequence[str]) -> str | None:
    """Return the key of a request by the header's lines; None without any. Its length is not judged. Raises MalformedKey.

    The header is one string in quotes (draft-ietf-httpapi-idempotency-key-header; RFC 9651, 3.3.3). Many clients leave the
    quotes out, so a bare value of visible ASCII is the same key. Parameters, a list, or the header twice are refused: two
    readers could disagree about them.
    """
    if not lines:
        return None
    if len(lines) > 1:
        raise MalformedKey(f"the header {KEY_HEADER} was sent {len(lines)} times: send it once")
    value = lines[0].strip(" ")
    if quoted := _QUOTED.fullmatch(value):
        return _ESCAPED.sub(r"\1", quoted[1])
    if _BARE.fullmatch(value):
        return value
    raise MalformedKey(
        f'the header {KEY_HEADER} must be one string in quotes, such as {KEY_HEADER}: "8e03978e-40d5-43dd-bc93-6894a57f9324"'
    )


def by_authorization(request: Request) -> str | None:
    """Distinguish clients by the header `Authorization`, of which only a hash is stored."""
    return request.headers.get("authorization")


def is_final(status: int) -> bool:
    """Return whether an answer is stored by default: not 408, 423, 425, 429 and 5xx, which a repetition may not get."""
    return status < SERVER_ERROR and status not in TRANSIENT


@dataclass(frozen=True, kw_only=True)
class RequestTerms:
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
    principal: Principal = by_authorization
    scope: Principal | None = None
    max_body: int = 1 << 20
    wait: float = 2.0
    max_commit: timedelta | None = None
    fingerprint: Fingerprint | None = None
    store_if: StoreIf = is_final

    def __post_init__(self) -> None:
        for name, given in (("fingerprint", self.fingerprint), ("store_if", self.store_if)):
            if given is not None and not callable(given):
                raise TransactionMisused(f"{name}= must be a function, not {type(given).__name__}")
        self.endpoint.transaction(max_commit=self.max_commit, wait=self.wait)

    async def serve(self, request: Request, respond: Respond) -> Response:
        """Return the response that `respond` makes, once all that it promises is committed. Raises what that raises."""
        try:
            key = self._key(request)
            limited = Request(request.scope, self._limited(request.receive))
            return await RequestAttempt(self, limited, key, await self._body(limited)).run(respond)
        except RequestProblem as refused:
            return refused.response

    def _key(self, request: Request) -> str | None:
        try:
            key = read_key(request.headers.getlist(KEY_HEADER))
        except MalformedKey as error:
            raise RequestProblem("malformed-key", str(error)) from error
        if key is None and self.key_required:
            repeats = "send a new string in quotes with each new request, the same when you repeat it"
            raise RequestProblem("key-missing", f"the header {KEY_HEADER} is missing: {repeats}")
        return key

    async def _body(self, request: Request) -> bytes:
        """Read the whole body before anything is locked: a client may take its time."""
        try:
            return await request.body()
        except ClientDisconnect as error:
            raise RequestProblem("incomplete", "the request ended before its body was complete: send it again") from error

    def _limited(self, receive: Receive) -> Receive:
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self.max_body:
                raise RequestProblem("too-large", f"the body is longer than the limit of {self.max_body:,} bytes: send less")
            return message

        return limited


class RequestAttempt:
    """One request that is being served, and its transaction, which is opened when it is first asked for."""

    def __init__(self, terms: RequestTerms, request: Request, key: str | None, body: bytes) -> None:
        self._terms = terms
        self._request = request
        self._key = key
        self._body = body
        self._stack = AsyncExitStack()
        self._transaction: Transaction | None = None

    async def run(self, respond: Respond) -> Response:
        """Return the committed response. Raises RequestProblem, what `respond` raises; CommitRefused to its handler."""
        self._request.scope[_ATTEMPT] = self
        try:
            async with self._stack:
                response = await complete(await respond(self._request), self._request)
                self._store(response)
        except _Instead as instead:
            return instead.response
        except CommitRefused as error:
            if _is_handled(error, self._request):
                raise
            raise self._refused_problem(error) from error
        except (RetryableError, ConflictError) as error:
            raise self._retry_problem(error) from error
        return response

    async def transaction(self) -> Transaction:
        """Return the transaction; the first call opens it. Raises RequestProblem, and what ends a repeated request."""
        if self._transaction is None:
            self._transaction = tx = await self._open()
            if tx.is_known:
                raise _Instead(decode_response(tx.answer))
        return self._transaction

    async def _open(self) -> Transaction:
        terms, asked = self._terms, self._compared()
        try:
            tx = terms.endpoint.transaction(
                idempotency_key=self._key,
                request=asked,
                scope=terms.scope(self._request) if terms.scope is not None else None,
                max_commit=terms.max_commit,
                wait=terms.wait,
            )
            async with asyncio.timeout(terms.wait + CONNECT_SECONDS if self._key else None):
                return await self._stack.enter_async_context(tx)
        except KeyReused as error:
            detail = f"this {KEY_HEADER} was used for another request: send a new one with each new request"
            raise RequestProblem("key-reused", detail) from error
        except InvalidKey as error:
            raise RequestProblem("malformed-key", str(error)) from error
        except TimeoutError as error:
            raise self._retry_problem(CommitFailed(f"cannot reach the store within {CONNECT_SECONDS:g} s")) from error
        except ConflictError as error:
            if self._key is None:
                raise
            detail = f"a request with this {KEY_HEADER} is in progress, or the database is busy: repeat it to get its response"
            raise RequestProblem("in-progress", detail, retry=True) from error

    def _compared(self) -> object:
        """Return what must be equal whenever a key comes again; of all of it only a hash is kept."""
        principal = self._terms.principal(self._request)
        return [self._request.method, str(self._request.scope["path"]), principal, self._fingerprint()]

    def _fingerprint(self) -> object:
        if self._terms.fingerprint is None:
            return [query_form(self._request.scope["query_string"]), body_form(self._request.headers, self._body)]
        found = self._terms.fingerprint(self._request, self._body)
        if not isinstance(found, bytes | str):
            raise TransactionMisused(f"fingerprint= must return bytes or a str, not {type(found).__name__}")
        return ["own", found.hex() if isinstance(found, bytes) else found]

    def _store(self, response: Response) -> None:
        if response.status_code >= SERVER_ERROR or not self._terms.store_if(response.status_code):
            raise _Instead(response)
        answer = encode_response(response)
        if self._key is not None and self._transaction is not None:
            self._transaction.answer = answer

    def _retry_problem(self, error: Exception) -> RequestProblem:
        if not isinstance(error, OutcomeUnknown):
            _log.warning("request not committed", extra=self._log_fields(error))
            return RequestProblem("not-done", f"this request changed nothing: repeat it{self._same_key()}", retry=True)
        _log.warning("request commit outcome unknown", extra=self._log_fields(error))
        if self._key is None:
            return RequestProblem("unknown", f"the outcome is unknown: check the data first, as it has no {KEY_HEADER}")
        return RequestProblem("unknown", f"the outcome is unknown: repeat it with the same {KEY_HEADER}", retry=True)

    def _refused_problem(self, error: CommitRefused) -> RequestProblem:
        """Report changes that the database rejected. A retry cannot help."""
        cause = error.__cause__ or error  # no line of the application is in its traceback: it had returned
        told = "".join(traceback.format_exception_only(cause))
        _log.error("request commit refused", extra=self._log_fields(error) | {"traceback": told})
        detail = "the database rejected the changes of this request, so it changed nothing: repeating it does not help"
        return RequestProblem("commit-refused", detail)

    def _log_fields(self, error: Exception) -> dict[str, str]:
        request = f"{self._request.method} {self._request.url.path}"
        return {"endpoint": self._terms.endpoint.name, "request": request, "reason": error_text(error)}

    def _same_key(self) -> str:
        return "" if self._key is None else f", with the same {KEY_HEADER}"


class _Instead(Exception):
    """Ends a transaction without committing it: this is the response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def attempt_of(request: Request) -> RequestAttempt | None:
    found: RequestAttempt | None = request.scope.get(_ATTEMPT)
    return found


def _is_handled(error: Exception, request: Request) -> bool:
    """Return whether the application has a handler of its own for this exception."""
    handlers, *_ = request.scope.get("starlette.exception_handlers", ({},))
    return any(kind in handlers for kind in type(error).__mro__)


async def transaction_of(request: Request) -> Transaction:
    """Return the transaction of a request, opening it. Raises TransactionMisused where there can be none."""
    attempt = attempt_of(request)
    if attempt is None:
        words = "has no transaction" if request.method not in SAFE else "is a safe method, so it has no transaction"
        raise TransactionMisused(f"{request.method} {request.url.path} {words}: check the class of its route")
    return await attempt.transaction()
