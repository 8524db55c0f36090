"""AWS: the address and credentials of a service, a client that never sends anything twice, and what its errors mean.

The driver is aiobotocore. What is not on a service's list of definite errors is OutcomeUnknown; a list names only what a server
says about a request that it did not carry out.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import version
from io import BytesIO
from typing import Any, TypeAlias

import aiohttp
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]
from aiobotocore.session import get_session  # type: ignore[import-untyped]
from botocore.exceptions import (  # type: ignore[import-untyped]
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.loaders import create_loader  # type: ignore[import-untyped]
from botocore.parsers import ResponseParserError  # type: ignore[import-untyped]
from msgspec import Struct

from onceonly.adapters.aws.address import AwsAccess
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.no_retry import refuse_second, sent_once
from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown, SetupError

AT_ONCE = 32
"""Requests under way at the same time, for one client."""
USER_AGENT = f"onceonly/{version('onceonly')}"
"""The name of the client in the logs of the service."""
NOT_ALLOWED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
"""Said before anything is done, because of credentials or rate."""
_UNSENT = (NoCredentialsError, PartialCredentialsError, ConnectTimeoutError)
_BROKEN: tuple[type[Exception], ...] = (BotoCoreError, ClientError, ResponseParserError, aiohttp.ClientError, *DRIVER_FAULTS)
_LARGE = 256 * 1024
CLIENT_ERRORS = range(400, 500)
_MODELS = create_loader()  # the descriptions of services: large files, read once for all clients
Client: TypeAlias = Any
Answer: TypeAlias = Mapping[str, Any]
ServiceError: TypeAlias = ClientError


class DefiniteError(Struct, frozen=True, kw_only=True):
    """What one service says when it did not carry out a request: `refused` for what is in it, `failed` for other reasons."""

    refused: frozenset[str] = frozenset()
    failed: frozenset[str] = frozenset()


@asynccontextmanager
async def connected(service: str, access: AwsAccess, **settings: object) -> AsyncIterator[Client]:
    """Open a client that sends every request once. `settings` are options of the driver, and go before the usual ones.

    Raises SetupError when it cannot know whom or where to ask.
    """
    chosen: dict[str, object] = {
        "http_session_cls": _SendsOnce,
        "connect_timeout": access.timeout,
        "read_timeout": access.timeout,
        "max_pool_connections": AT_ONCE,
        "retries": {"total_max_attempts": 1},
        "parameter_validation": False,  # each call is ours, and the service judges it as well
        "user_agent": USER_AGENT,  # else it is put together anew for every request
        **settings,
    }
    config = AioConfig(**chosen)
    session = get_session()
    session.register_component("data_loader", _MODELS)
    try:
        opening = session.create_client(
            service,
            verify=None if access.endpoint.startswith("https:") or not access.endpoint else False,  # nothing to verify
            region_name=access.region or None,
            endpoint_url=access.endpoint or None,
            aws_access_key_id=access.key or None,
            aws_secret_access_key=access.secret or None,
            config=config,
        )
        client = await opening.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise SetupError(f"cannot create a client for {service}: {error}") from error
    try:
        yield client
    finally:
        await client.close()


class _SendsOnce(AIOHTTPSession):  # type: ignore[misc]
    """The driver's own, but that each of its requests is sent once; see `sent_once`."""

    async def send(self, request: Any) -> Any:
        """Send a request. Raises SetupError when it went past the middleware: the driver makes its sessions elsewhere."""
        if isinstance(request.body, bytes) and len(request.body) > _LARGE:
            request.body = BytesIO(request.body)  # so that aiohttp writes it piece by piece, and lets others run
        with sent_once() as sent:
            answer = await super().send(request)
        if not sent:
            raise SetupError(
                "this version of aiobotocore may repeat a write, so messages may be handled twice: install aiobotocore 3.10"
            )
        return answer

    async def _get_session(self, proxy_url: str | None) -> "_Session":
        return _Session(await super()._get_session(proxy_url))


class _Session:
    """A session whose requests pass the middleware; the driver makes sessions without."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def request(self, method: str, **options: Any) -> aiohttp.ClientResponse:
        return await self._session.request(method, middlewares=(refuse_second,), **options)


def code_of(error: ServiceError) -> str:
    """Return the name that a service has for its error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ServiceError) -> int:
    """Return the HTTP status of an answer, 0 if it has none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def request_id(answer: Answer) -> str:
    """Return the service's own name for an answer.

    Raises LookupError, which is OutcomeUnknown, when something else has answered.
    """
    name: str = answer["ResponseMetadata"]["RequestId"]
    return name


@contextmanager
def translated(what: str, definite: DefiniteError) -> Iterator[None]:
    """Translate the driver's errors into this library's.

    Raises CommitRefused, CommitFailed, and OutcomeUnknown for all that is not on the list of definite errors.
    """
    try:
        yield
    except _BROKEN as error:
        raise _translate(error, what, definite) from error


@contextmanager
def setup_errors(what: str, missing: Mapping[str, str], definite: DefiniteError) -> Iterator[None]:
    """Turn errors at start into SetupError where a person must act; `missing` has advice for some of them, by name."""
    try:
        yield
    except ClientError as error:
        if remedy := missing.get(code_of(error)):
            raise SetupError(f"{what}: {remedy}") from error
        if code_of(error) in NOT_ALLOWED:
            raise SetupError(
                f"{what} is not allowed ({code_of(error)}): grant the permission, or use other credentials"
            ) from error
        raise _translate(error, what, definite) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise SetupError(f"{what} needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile") from error
    except _BROKEN as error:
        raise _translate(error, what, definite) from error


def _translate(error: Exception, what: str, definite: DefiniteError) -> OnceOnlyError:
    if isinstance(error, ClientError):
        code = code_of(error)
        text = f"{what}: {error.response.get('Error', {}).get('Message', '') or 'no reason given'} ({code})"
        if status_of(error) in CLIENT_ERRORS:
            if code in definite.refused:
                return CommitRefused(text)
            if code in definite.failed or code in NOT_ALLOWED:
                return CommitFailed(text)
        return OutcomeUnknown(text)
    if _was_never_sent(error):
        return CommitFailed(f"{what}: nothing was sent: {error}")
    return OutcomeUnknown(f"{what}: no answer: {type(error).__name__}: {error}")


def _was_never_sent(error: Exception) -> bool:
    if isinstance(error, EndpointConnectionError):
        return isinstance(error.kwargs.get("error"), aiohttp.ClientConnectorError)
    return isinstance(error, _UNSENT)
