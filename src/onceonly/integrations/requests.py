"""Serving one HTTP request of Starlette or FastAPI once, in a transaction of the endpoint's own; see `request_rules`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from onceonly.endpoint import Transaction
from onceonly.integrations.idempotency_keys import KEY_HEADER
from onceonly.integrations.idempotency_responses import complete, decode_response, encode_response, response_of
from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import SAFE, ReceivedRequest, RequestRules
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    InvalidKey,
    RetryableError,
    TransactionMisused,
)

CONNECT_SECONDS = 10.0
"""Seconds that the store may take to be reached, next to what is waited for another request with the key."""
Respond = Callable[[Request], Awaitable[Response]]
Principal = Callable[[Request], str | None]
"""Returns the principal of a request, as the scope of its idempotency key. None: the client is not identified."""
_ATTEMPT = "onceonly.attempt"


def by_authorization(request: Request) -> str | None:
    """Distinguish clients by the header `Authorization`, of which only a hash is stored."""
    return request.headers.get("authorization")


@dataclass(frozen=True, kw_only=True)
class RequestTerms(RequestRules[Request]):
    """How an endpoint serves requests of ASGI; see `RequestRules`."""

    principal: Principal = by_authorization

    async def serve(self, request: Request, respond: Respond) -> Response:
        """Return the response that `respond` makes, once all that it promises is committed. Raises what that raises."""
        try:
            key = self.key(request.headers.getlist(KEY_HEADER))
            limited = Request(request.scope, self._limited(request.receive))
            received = ReceivedRequest(
                method=request.method,
                path=str(request.scope["path"]),
                query=request.scope["query_string"],
                content_types=request.headers.getlist("content-type"),
                is_encoded="content-encoding" in request.headers,
                key=key,
                body=await self._body(limited),
            )
            return await RequestAttempt(self, limited, received).run(respond)
        except RequestProblem as refused:
            return response_of(refused.response)

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
                raise self.too_large()
            return message

        return limited


class RequestAttempt:
    """One request that is being served, and its transaction, which is opened when it is first asked for."""

    def __init__(self, terms: RequestTerms, request: Request, received: ReceivedRequest) -> None:
        self._terms = terms
        self._request = request
        self._received = received
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
        except (RetryableError, ConflictError) as error:
            if isinstance(error, CommitRefused) and _is_handled(error, self._request):
                raise
            raise self._terms.failure(error, self._received) from error
        return response

    async def transaction(self) -> Transaction:
        """Return the transaction; the first call opens it. Raises RequestProblem, and what ends a repeated request."""
        if self._transaction is None:
            self._transaction = tx = await self._open()
            if tx.is_known:
                raise _Instead(decode_response(tx.answer))
        return self._transaction

    async def _open(self) -> Transaction:
        terms, received = self._terms, self._received
        asked = terms.compared(self._request, received)
        try:
            tx = terms.endpoint.transaction(
                idempotency_key=received.key,
                request=asked,
                scope=terms.scope_of(self._request),
                max_commit=terms.max_commit,
                wait=terms.wait,
            )
            async with asyncio.timeout(terms.wait + CONNECT_SECONDS if received.key else None):
                return await self._stack.enter_async_context(tx)
        except TimeoutError as error:
            late = CommitFailed(f"cannot reach the store within {CONNECT_SECONDS:g} s")
            raise terms.failure(late, received) from error
        except (InvalidKey, ConflictError) as error:
            raise terms.refusal(error, received) from error

    def _store(self, response: Response) -> None:
        if not self._terms.is_stored(response.status_code):
            raise _Instead(response)
        answer = encode_response(response)
        if self._received.key is not None and self._transaction is not None:
            self._transaction.answer = answer


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
