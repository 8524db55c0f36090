"""For Starlette: `lifespan`, and `idempotent`, a decorator of functions that serve requests."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import wraps
from typing import Any

from onceonly.endpoint import Endpoint, Transaction
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import DriverMissing, SetupError

try:
    from starlette.requests import Request
    from starlette.responses import Response

    from onceonly.integrations.request_rules import is_final
    from onceonly.integrations.requests import Principal, RequestTerms, by_authorization, transaction_of
except ModuleNotFoundError as missing:
    raise DriverMissing("starlette is not installed: pip install 'onceonly[starlette]'") from missing

Serving = Callable[[Request, Transaction], Awaitable[Response]]
"""A request handler that receives the open transaction."""

_log = EventLogger(logging.getLogger("onceonly.http"))

__all__ = ["Principal", "Serving", "idempotent", "lifespan"]


def lifespan(*endpoints: Endpoint, worker: bool = False) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return the lifespan of an application whose requests use these endpoints: `Starlette(lifespan=lifespan(shop))`.

    The process dispatches what its transactions commit, and what other processes left. With `worker` it also handles
    messages. The application starts even if a broker or database is unavailable. A wrong set-up ends the start with an error,
    which servers print as one line. Its traceback is logged at DEBUG.
    """

    @asynccontextmanager
    async def around(_app: object) -> AsyncIterator[None]:
        try:
            async with AsyncExitStack() as stack:
                for endpoint in endpoints:
                    await stack.enter_async_context(endpoint.running() if worker else endpoint.sending())
                yield
        except SetupError as error:
            _log.debug("application lifespan failed", exc_info=error)
            _print_without_frames()
            raise error.with_traceback(None) from None

    return around


def _print_without_frames() -> None:
    """Print a traceback that is formatted now as its last line: that is the whole message to an operator.

    Starlette reports a failed start as the formatted traceback (`lifespan.startup.failed`), and servers print that. It is
    formatted before the event loop turns again.
    """
    before = getattr(sys, "tracebacklimit", None)
    if before == 0:  # set already: one of several lifespans around each other has failed
        return

    def restore() -> None:
        if before is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = before

    sys.tracebacklimit = 0
    asyncio.get_running_loop().call_soon(restore)


def idempotent(  # noqa: PLR0913 - one parameter for each option
    endpoint: Endpoint,
    *,
    key_required: bool = True,
    principal: Principal = by_authorization,
    scope: Principal | None = None,
    max_body: int = 1 << 20,
    wait: float = 2.0,
    max_commit: timedelta | None = None,
    fingerprint: Callable[[Request, bytes], bytes | str] | None = None,
    store_if: Callable[[int], bool] = is_final,
) -> Callable[[Serving], Callable[[Request], Awaitable[Response]]]:
    """Make a function handle each request once: `@idempotent(shop)` above `async def place(request, tx)`.

    The function receives the open transaction. Its response is committed with the transaction before the first byte is sent,
    and returned to every retry with the same `Idempotency-Key`. An exception rolls the transaction back.

    * `key_required`: whether a request must have a key. One without is a transaction that is not deduplicated.
    * `principal`: returns the principal of a request, such as a user. The key of another principal is refused.
    * `scope`: returns the space of a key, such as a tenant. The same key in another scope is another key.
    * `max_body`: bytes of a request's body.
    * `wait`: seconds to wait for another request with the same key.
    * `max_commit`: the longest duration of the transaction. Default: the endpoint's.
    * `fingerprint`: returns bytes or text of a request and its body. It replaces the comparison of query and body.
    * `store_if`: returns whether a response with this status is stored. If not, the transaction is rolled back, and the key is
      free. Default: all but 408, 423, 425, 429 and 5xx. A 5xx is never stored.

    Raises TransactionMisused for durations that no transaction can have.
    """
    terms = RequestTerms(
        endpoint=endpoint,
        key_required=key_required,
        principal=principal,
        scope=scope,
        max_body=max_body,
        wait=wait,
        max_commit=max_commit,
        fingerprint=fingerprint,
        store_if=store_if,
    )

    def decorate(function: Serving) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            return await function(request, await transaction_of(request))

        @wraps(function)
        async def serve(request: Request) -> Response:
            return await terms.serve(request, respond)

        return serve

    return decorate
