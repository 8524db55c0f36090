"""Serving one HTTP request of Azure Functions once; see `request_rules`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from azure.functions import HttpRequest, HttpResponse

from onceonly.endpoint import EnlistedKey, Transaction
from onceonly.integrations.idempotency_keys import KEY_HEADER
from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import ReceivedRequest, RequestRules
from onceonly.integrations.session_requests import SessionRules, SessionServer
from onceonly.integrations.session_transactions import RequestTransaction
from onceonly.integrations.stored_responses import IdempotencyResponse, decoded, encoded
from onceonly.model.errors import CommitFailed, ConflictError, InvalidKey, OnceOnlyError, RetryableError

CONNECT_SECONDS = 10.0
"""Seconds that the store may take to be reached, next to what is waited for another request with the key."""
AsyncRespond = Callable[[Transaction], Awaitable[object]]
Respond = Callable[[RequestTransaction], object]
Rules = RequestRules[HttpRequest] | SessionRules[HttpRequest]


class _RolledBack(Exception):
    """Ends a transaction without committing it: this is the response."""

    def __init__(self, response: IdempotencyResponse) -> None:
        super().__init__(response.status)
        self.response = response


def received_request(rules: Rules, request: HttpRequest) -> ReceivedRequest:
    """Read a request. Raises RequestProblem."""
    found = request.headers.get(KEY_HEADER)
    key = rules.key([] if found is None else [found])
    body = request.get_body()
    if len(body) > rules.max_body:
        raise rules.too_large()
    url = urlsplit(request.url)
    kind = request.headers.get("content-type")
    return ReceivedRequest(
        method=request.method,
        path=unquote(url.path),
        query=url.query.encode(),
        content_types=[] if kind is None else [kind],
        is_encoded="content-encoding" in request.headers,
        key=key,
        body=body,
    )


@dataclass(frozen=True, kw_only=True)
class AsyncServer:
    """Serves requests in transactions of the endpoint's own."""

    rules: RequestRules[HttpRequest]

    async def serve(self, request: HttpRequest, respond: AsyncRespond) -> HttpResponse:
        """Return the response that `respond` makes, once all that it promises is committed. Raises what that raises."""
        try:
            return response_of(await self._serve(request, received_request(self.rules, request), respond))
        except RequestProblem as refused:
            return response_of(refused.response)

    async def _serve(self, request: HttpRequest, received: ReceivedRequest, respond: AsyncRespond) -> IdempotencyResponse:
        rules = self.rules
        tx = rules.endpoint.transaction(
            idempotency_key=received.key,
            request=rules.compared(request, received),
            scope=rules.scope_of(request),
            max_commit=rules.max_commit,
            wait=rules.wait,
        )
        try:
            async with AsyncExitStack() as stack:
                await self._enter(stack, tx, received)
                return decoded(tx.answer) if tx.is_known else await self._respond(tx, received, respond)
        except _RolledBack as instead:
            return instead.response
        except (RetryableError, ConflictError) as error:
            raise rules.failure(error, received) from error

    async def _enter(self, stack: AsyncExitStack, tx: Transaction, received: ReceivedRequest) -> None:
        try:
            async with asyncio.timeout(self.rules.wait + CONNECT_SECONDS if received.key else None):
                await stack.enter_async_context(tx)
        except TimeoutError as error:
            late = CommitFailed(f"cannot reach the store within {CONNECT_SECONDS:g} s")
            raise self.rules.failure(late, received) from error
        except (InvalidKey, ConflictError) as error:
            raise self.rules.refusal(error, received) from error

    async def _respond(self, tx: Transaction, received: ReceivedRequest, respond: AsyncRespond) -> IdempotencyResponse:
        response = stored_response(await respond(tx))
        if not self.rules.is_stored(response.status):
            raise _RolledBack(response)
        answer = encoded(response.status, response.headers, response.body)
        if received.key is not None:
            tx.answer = answer
        return response


class ThreadServer:
    """Serves requests in sessions of the caller, in threads. The loop dispatches what they have committed."""

    def __init__(self, rules: SessionRules[HttpRequest]) -> None:
        self._rules = rules

    async def serve(self, request: HttpRequest, respond: Respond) -> HttpResponse:
        """Return the response that `respond` makes, once all that it promises is committed. Raises what that raises."""
        taken: list[EnlistedKey] = []
        server = SessionServer[HttpRequest, Any](rules=self._rules, complete=stored_response, entered=taken.append)

        def receive() -> ReceivedRequest:
            return received_request(self._rules, request)

        response = await asyncio.to_thread(server.serve, request, receive, respond)
        for entry in taken:
            with suppress(OnceOnlyError):  # nothing is committed, or the timer of `maintenance` sends it
                await entry.dispatch()
        return response_of(response if isinstance(response, IdempotencyResponse) else stored_response(response))


def stored_response(returned: object) -> IdempotencyResponse:
    """Return what a function returns as it is stored: an HttpResponse, or a text. Raises TypeError for anything else."""
    response = HttpResponse(returned) if isinstance(returned, str) else returned
    if not isinstance(response, HttpResponse):
        raise TypeError(f"an HTTP function returns func.HttpResponse or a str, not {type(returned).__name__}")
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers.items()]
    if not any(name == b"content-type" for name, _ in headers):
        kind = response.mimetype
        headers.append(
            (b"content-type", (f"{kind}; charset={response.charset}" if kind.startswith("text/") else kind).encode())
        )
    return IdempotencyResponse(response.status_code, tuple(headers), response.get_body())


def response_of(stored: IdempotencyResponse) -> HttpResponse:
    """Return a response as the worker takes it."""
    headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in stored.headers]
    response = HttpResponse(stored.body, status_code=stored.status)
    for name, value in headers:
        response.headers.add(name, value)
    return response
