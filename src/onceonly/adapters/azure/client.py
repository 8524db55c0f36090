"""Azure storage: where an account is, who we are there, a connection that sends nothing twice, and names that its URLs take."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from io import BytesIO
from typing import Any

import aiohttp
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.exceptions import AzureError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from msgspec import Struct

from onceonly.adapters.azure.address import VARIABLE, AzureAddress
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.no_retry import SentTwiceError, sent_once, session
from onceonly.model.errors import CommitFailed, CommitRefused, DriverMissing, OnceOnlyError, OutcomeUnknown, SetupError

BROKEN: tuple[type[Exception], ...] = (AzureError, SentTwiceError, aiohttp.ClientError, *DRIVER_FAULTS)
"""All that the driver raises, also for answers that it cannot read."""
_LARGE = 1 << 20
_REQUEST_TOO_LARGE = 413
_ANSWER_SECONDS = 30.0
_PLAIN = re.compile(rb"[^A-Za-z0-9_/-]")
_ESCAPED = re.compile(rb"~([0-9a-f]{2})")
_ACCESS_ERRORS = {
    "AccountIsDisabled": "this account is disabled",
    "AuthenticationFailed": "the account key, token or clock is wrong",
    "AuthorizationFailure": "this network or identity is not allowed",
    "AuthorizationPermissionMismatch": "this identity needs the role of a data contributor",
    "InsufficientAccountPermissions": "this account does not allow it",
    "InvalidAuthenticationInfo": "the account key or token is malformed",
    "NoAuthenticationInformation": "no account key or token was sent",
}
"""What the service says before it looks at a request any further. Source: common error codes of its REST API."""


class _Transport(AioHttpTransport):  # type: ignore[misc] # the driver gives it by __getattr__
    """The driver's own, but that each of its requests is sent once.

    Large data is handed over as a file: for bytes the HTTP library would give a warning.
    """

    async def send(self, request: Any, **options: Any) -> Any:
        if isinstance(request.data, bytes) and len(request.data) > _LARGE:
            request.data = BytesIO(request.data)
        with sent_once():
            return await super().send(request, **options)


class PreconditionFailed(Exception):
    """What should have been written was not as it was expected to be: definite, nothing of this request happened."""


@asynccontextmanager
async def connected(address: AzureAddress, *, timeout: float = _ANSWER_SECONDS) -> AsyncIterator[dict[str, Any]]:  # noqa: ASYNC109 - of each request
    """Open a connection, and give what the driver's clients are made with; it sends no write twice. Raises DriverMissing.

    `timeout` is in seconds, for a connection, and for each part of an answer.
    """
    credential = _credential(address)
    async with session() as http:
        transport = _Transport(session=http, session_owner=False, connection_timeout=timeout, read_timeout=timeout)
        try:
            yield {
                "credential": credential,
                "transport": transport,
                "retry_total": 0,
                "retry_to_secondary": False,
                "permit_redirects": False,
            }
        finally:
            if hasattr(credential, "close"):
                await credential.close()


@contextmanager
def setup_errors(service: str) -> Iterator[None]:
    """Raise what the driver rejects in an endpoint, a name or a kind of credential as a SetupError."""
    try:
        yield
    except ValueError as error:
        raise SetupError(f"invalid URL or endpoint for {service}: {error}") from error


def code_of(error: Exception) -> str:
    """Return the service's own code for an error; empty when it was not the service that spoke."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "")


def outage(doing: str, error: Exception) -> OnceOnlyError:
    """Return what an error means where the adapter has no rule of its own.

    CommitFailed when nothing was sent or access was denied, else OutcomeUnknown.

    ServerBusy (503), also when it throttles, is OutcomeUnknown: nothing documented promises that such a request was not
    executed.
    """
    code = code_of(error)
    if code in _ACCESS_ERRORS:
        return CommitFailed(f"Azure storage rejected the request to {doing}: {_ACCESS_ERRORS[code]} ({code})")
    # The driver says ServiceRequestError of every broken connection; only the cause tells those that were never made.
    if isinstance(error.__cause__, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return CommitFailed(f"Azure storage is unreachable, cannot {doing}: {error}")
    return OutcomeUnknown(f"Azure storage did not confirm the request to {doing}: {code or repr(error)}")


def access_error(error: Exception) -> SetupError | None:
    """Return the SetupError for a failed authentication; None for other errors."""
    reason = _ACCESS_ERRORS.get(code_of(error))
    return SetupError(f"Azure storage: {reason} ({code_of(error)})") if reason else None


class StorageErrors(Struct, frozen=True):
    """What errors mean that are about one `place`, such as "table orders". The others are codes of the service."""

    place: str
    missing: frozenset[str]
    refused: frozenset[str]
    too_large: frozenset[str]

    def of_start(self, error: Exception) -> OnceOnlyError:
        return access_error(error) or self._of_missing(error) or self.of_read(error)

    def of_creation(self, error: Exception) -> OnceOnlyError:
        return access_error(error) or outage(f"create the {self.place}", error)

    def of_read(self, error: Exception) -> CommitFailed:
        return CommitFailed(str(self._of_missing(error) or outage(f"read the {self.place}", error)))

    def of_write(self, error: Exception) -> PreconditionFailed | OnceOnlyError:
        code = code_of(error)
        if code in self.refused:
            return PreconditionFailed(str(error))
        if missing := self._of_missing(error):
            return CommitFailed(str(missing))
        if code in self.too_large or (isinstance(error, HttpResponseError) and error.status_code == _REQUEST_TOO_LARGE):
            return CommitRefused(f"what is written is too large for the {self.place} ({code})")
        return outage(f"write to the {self.place}", error)

    def _of_missing(self, error: Exception) -> SetupError | None:
        if code_of(error) not in self.missing:
            return None
        remedy = "run `onceonly schema create module:endpoint`, or create it there"
        return SetupError(f"{self.place} does not exist in this Azure account: {remedy}")


def escaped(key: str) -> str:
    """Write a key in letters that no URL, proxy or service changes: A-Z a-z 0-9 _ - and /, all else as ~ and two digits.

    What begins with `prefix` begins with `escaped(prefix)`, and nothing else does. A byte takes three letters at most.
    """
    return _PLAIN.sub(lambda found: b"~%02x" % found[0][0], key.encode(errors="surrogatepass")).decode()


def unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), text.encode()).decode()


def _credential(address: AzureAddress) -> Any:
    if address.key:
        return AzureNamedKeyCredential(address.account, address.key)
    if address.token:
        return AzureSasCredential(address.token)
    written = f"azure-...://{address.account}:KEY@{address.account}/..."
    return default_credential(f"no key for the Azure account {address.account}: set {VARIABLE}, or write {written}")


def default_credential(problem: str) -> Any:
    """Return what azure-identity finds. Raises DriverMissing, with the `problem` that it would solve."""
    try:
        identity = import_module("azure.identity.aio")  # only those who have no key need it
    except ImportError as error:
        raise DriverMissing(f"{problem}, or install azure-identity") from error
    return identity.DefaultAzureCredential()
