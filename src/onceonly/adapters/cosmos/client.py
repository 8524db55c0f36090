"""Cosmos DB: where it is, a client that sends no write twice, and what its errors mean. The driver is azure-cosmos.

The driver sends a request again by several policies of its own: for throttling, lost connections (writes too, although the
service may have applied them), unavailable regions, and 503. `_SentOnce` stands below them all: it lets each write pass once.
Below it aiohttp repeats on its own; see `sent_once`.

A request that was refused as one too many is not repeated. But no other request of this client is sent before the time has
passed that the service asked to wait (`x-ms-retry-after-ms`): `Pause`.
"""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

from aiohttp import ClientConnectorError
from azure.core.exceptions import AzureError, ServiceRequestError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import AsyncHTTPPolicy
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos.aio import ContainerProxy, CosmosClient, DatabaseProxy
from azure.cosmos.documents import ConnectionPolicy
from azure.cosmos.exceptions import CosmosHttpResponseError

from onceonly.adapters.cosmos.address import KEY_VARIABLE, CosmosAddress
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.no_retry import SentTwiceError, sent_once, session
from onceonly.model.errors import CommitFailed, DriverMissing, OnceOnlyError, OutcomeUnknown, SetupError

_LARGE = 1 << 20  # above this aiohttp wants a stream, so that it can send in pieces
_NOT_WRITTEN = {
    400,
    401,
    403,
    413,
    429,  # too many requests
    449,  # another write was in the way
}
"""Statuses that say the write was refused, and not by its condition."""
TOO_MANY_REQUESTS = 429
_OPTIONS_OF_THE_DRIVER = ("global_endpoint_manager", "timeout")
_IS_SENT = "onceonly_is_sent"
_LONGEST_PAUSE_SECONDS = 3600.0
"""A service that asks for more does not mean it."""


class ThrottledError(Exception):
    """A request was not sent, because the service asked to wait for longer than a request may take."""


LOST: tuple[type[Exception], ...] = (AzureError, SentTwiceError, ThrottledError, *DRIVER_FAULTS)
"""What a request can raise."""


class Pause:
    """Holds back all requests of a client for as long as the service asked when it refused one as too many."""

    def __init__(self, longest: float) -> None:
        """Hold a request back for at most `longest` seconds, and refuse it otherwise."""
        self._longest = longest
        self._until = 0.0

    def asked(self, milliseconds: object) -> None:
        """Note what the service asked for: the value of its header or its field, as text or a number."""
        try:
            seconds = float(str(milliseconds)) / 1000
        except ValueError:
            return
        if 0 < seconds < _LONGEST_PAUSE_SECONDS:
            self._until = max(self._until, asyncio.get_running_loop().time() + seconds)

    async def over(self) -> None:
        """Wait until it is over. Raises ThrottledError if that takes too long."""
        now = asyncio.get_running_loop().time
        while (left := self._until - now()) > 0:
            if left > self._longest:
                raise ThrottledError(f"Cosmos DB asked to wait {left:.1f} s more; nothing was sent")
            await asyncio.sleep(left)


class Account:
    """A client that connects at its first use, and again when that failed."""

    def __init__(self, address: CosmosAddress) -> None:
        self.address = address
        self.pause = Pause(address.timeout)
        self._client: CosmosClient | None = None
        self._connecting = asyncio.Lock()
        self._open = AsyncExitStack()

    async def client(self) -> CosmosClient:
        async with self._connecting:
            if self._client is None:
                async with AsyncExitStack() as opening:
                    try:
                        client = await opening.enter_async_context(await self._new_client(opening))
                    except LOST as error:
                        raise refused_setup(error, self.address) from error
                    await self._open.enter_async_context(opening.pop_all())
                self._open.push_async_callback(_wait_for_region_refresh, client, self.address.timeout)
                self._client = client
            return self._client

    async def database(self) -> DatabaseProxy:
        return (await self.client()).get_database_client(self.address.database)

    async def container(self) -> ContainerProxy:
        return (await self.database()).get_container_client(self.address.container)

    async def close(self) -> None:
        await self._open.aclose()

    async def _new_client(self, opening: AsyncExitStack) -> CosmosClient:
        policy = ConnectionPolicy()
        policy.ConnectionRetryConfiguration = _SentOnce(self.pause)  # type: ignore[assignment] # any policy will do, says the code
        policy.RetryOptions = type(policy.RetryOptions)(max_retry_attempt_count=0)  # "too many requests" is for the caller
        credential: Any = self.address.key or await opening.enter_async_context(_identity())
        return CosmosClient(
            self.address.endpoint,
            credential,
            connection_policy=policy,
            transport=AioHttpTransport(session=await opening.enter_async_context(session()), session_owner=False),
            connection_verify=not self.address.emulator,
            enable_endpoint_discovery=not self.address.emulator,
            connection_timeout=self.address.timeout,
            read_timeout=self.address.timeout,
            enable_compact_utf8_item_writes=True,
        )


class _SentOnce(AsyncHTTPPolicy):  # type: ignore[type-arg] # the driver's own requests pass through
    """Stands in the place of the driver's policy for connections, above the network and below all that repeats."""

    def __init__(self, pause: Pause) -> None:
        super().__init__()
        self._pause = pause

    async def send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        """Send a read, or a write for the first time, after the pause that the service asked for.

        Raises SentTwiceError for a write that was sent before, ThrottledError.
        """
        await self._pause.over()
        answer = await self._send(request)
        if answer.http_response.status_code == TOO_MANY_REQUESTS:
            self._pause.asked(answer.http_response.headers.get("x-ms-retry-after-ms"))
        return answer

    async def _send(self, request: PipelineRequest[Any]) -> PipelineResponse[Any, Any]:
        options = request.context.options
        parameters = options.pop("request_params", None)
        for name in _OPTIONS_OF_THE_DRIVER:
            options.pop(name, None)
        http = request.http_request
        operation = str(getattr(parameters, "operation_type", ""))
        if operation in {"Create", "Replace", "Delete", "Upsert", "Patch", "Batch"}:
            if getattr(http, _IS_SENT, False):
                raise SentTwiceError("a write got no certain answer, and it must not be sent twice")
            setattr(http, _IS_SENT, True)
            if isinstance(http.data, str | bytes) and len(http.data) > _LARGE:
                http.data = io.BytesIO(http.data.encode() if isinstance(http.data, str) else http.data)
            with sent_once():
                return await self.next.send(request)
        return await self.next.send(request)


@asynccontextmanager
async def open_account(address: CosmosAddress) -> AsyncIterator[Account]:
    """Prepare a client, and close it at the end; connects at the first call."""
    account = Account(address)
    try:
        yield account
    finally:
        await account.close()


def translated(error: Exception, *, reads: bool = False) -> OnceOnlyError:
    """Translate the driver's errors by allow-list; gives, never raises. A read that failed is CommitFailed: it changes nothing.

    That the condition of a write was not met is an answer, not an error; see the store.
    """
    text = f"Cosmos DB: {first_line(error)}"
    if isinstance(error, CosmosHttpResponseError):
        is_definite = error.status_code in _NOT_WRITTEN
    elif isinstance(error, ServiceRequestError):
        is_definite = isinstance(error.inner_exception, ClientConnectorError)
    else:
        is_definite = isinstance(error, ThrottledError)
    return CommitFailed(text) if reads or is_definite else OutcomeUnknown(text)


def refused_setup(error: Exception, address: CosmosAddress) -> OnceOnlyError:
    """Return what a person must change when a start fails, or that the service is away."""
    if isinstance(error, CosmosHttpResponseError) and error.status_code in {401, 403}:
        return SetupError(f"{address.endpoint} refused this key, identity or network: {first_line(error)}")
    return CommitFailed(f"Cosmos DB at {address.endpoint}: {first_line(error)}")


async def _wait_for_region_refresh(client: CosmosClient, timeout: float) -> None:  # noqa: ASYNC109 - it ends the wait, and raises nothing
    """Wait for the look at regions that the driver takes in the background.

    Its own `close` cancels that look, and a connection that is cancelled while TLS begins stays open.
    """
    look = client.client_connection._global_endpoint_manager.refresh_task  # noqa: SLF001 - there is no public way
    if look is not None:
        await asyncio.wait([look], timeout=timeout)


@asynccontextmanager
async def _identity() -> AsyncIterator[Any]:
    try:
        identity = import_module("azure.identity.aio")
    except ImportError as error:
        raise DriverMissing(
            f"no key for Cosmos DB: set {KEY_VARIABLE}, or install azure-identity to use the identity of this machine"
        ) from error
    async with identity.DefaultAzureCredential() as credential:
        yield credential


def first_line(error: Exception) -> str:
    """Return the first line of the driver's message; the others repeat it."""
    return (str(error).splitlines() or [type(error).__name__])[0]
