"""For Starlette: `lifespan`, and `once`, a decorator of functions that serve requests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onceonly.endpoint import Endpoint, Transaction
from onceonly.integrations.requests import Principal, RequestTerms, by_authorization, transaction_of

Serving = Callable[[Request, Transaction], Awaitable[Response]]
"""A request handler that works in the transaction it is given."""

__all__ = ["Principal", "Serving", "lifespan", "once"]


def lifespan(*endpoints: Endpoint, worker: bool = False) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Make the lifespan of an application whose requests use these endpoints: `Starlette(lifespan=lifespan(shop))`.

    The process sends what its transactions commit, and what others have left; with `worker` it handles messages as well. A
    broker or database that is away at start holds nobody up. A wrong set-up is raised at start.
    """

    @asynccontextmanager
    async def around(_app: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for endpoint in endpoints:
                await stack.enter_async_context(endpoint.running() if worker else endpoint.sending())
            yield

    return around


def once(  # noqa: PLR0913 - one parameter for each option
    endpoint: Endpoint,
    *,
    key_required: bool = True,
    principal: Principal = by_authorization,
    scope: Principal | None = None,
    max_body: int = 1 << 20,
    wait: float = 2.0,
    max_commit: timedelta | None = None,
) -> Callable[[Serving], Callable[[Request], Awaitable[Response]]]:
    """Have a function serve each request once: `@once(shop)` above `async def place(request, tx)`.

    It gets the open transaction; what it returns is committed with it before the first byte is sent, and given to every retry
    with the same `Idempotency-Key`. What it raises rolls back. The options are those of `RequestTerms`.
    """
    terms = RequestTerms(
        endpoint=endpoint,
        key_required=key_required,
        principal=principal,
        scope=scope,
        max_body=max_body,
        wait=wait,
        max_commit=max_commit,
    )

    def decorate(function: Serving) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await function(request, await transaction_of(request))

        @wraps(function)
        async def serve(request: Request) -> Response:
            return await terms.serve(request, respond)

        return serve

    return decorate
