"""RavenDB's HTTP interface: a client that sends no write twice, and what its answers mean. The driver is aiohttp.

The server gives its errors as JSON with the name of an exception. Only exceptions that it raises before it writes anything are
definite. All others leave the outcome of a write unknown.
"""

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout, ConnectionTimeoutError
from msgspec import Struct

from onceonly.adapters.ravendb.address import RavenDBAddress
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.no_retry import SentTwiceError, sent_once, session
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, SetupError
from onceonly.queues.names import tls_context

__all__ = ["RavenDBAnswer", "RavenDBClient", "failure", "open_client", "refused_setup"]

VERSION = "Raven-Server-Version"
MISSING = "Database-Missing"
BROKEN: tuple[type[Exception], ...] = (ClientError, SentTwiceError, *DRIVER_FAULTS)
"""All that the driver raises."""
_LARGE = 1 << 20  # above this aiohttp wants a stream, so that it can send in pieces
_NOT_ALLOWED = frozenset({401, 403})
_TOO_LARGE = 413
_NO_DATABASE = frozenset({"DatabaseDoesNotExistException", "NodeIsPassiveException"})  # passive: it never had a database
_NOT_WRITTEN = _NO_DATABASE | {"AuthorizationException", "InsufficientTransportLayerProtectionException"}
"""Exceptions of the server's routing, which comes before any write."""
_CONFLICT = 409
_NOT_FOUND = 404


class _Problem(Struct, frozen=True, rename="pascal"):
    type: str = ""
    message: str = ""


class RavenDBAnswer(Struct, frozen=True):
    """An answer of the server."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 - what HTTP calls success

    @property
    def is_missing(self) -> bool:
        """Whether what was asked for is missing in the database. A proxy's own 404 is not from this server."""
        return self.status == _NOT_FOUND and not self.body.strip() and VERSION in self.headers and MISSING not in self.headers

    @property
    def is_refused(self) -> bool:
        """Whether a document did not have the expected change vector. The server then wrote nothing of the request."""
        return self.status == _CONFLICT and self.problem == "ConcurrencyException"

    @property
    def has_no_database(self) -> bool:
        return MISSING in self.headers or self.problem in _NO_DATABASE

    @property
    def problem(self) -> str:
        """The name of the exception that the server reports, without its namespace. Empty if it reports none."""
        return self._problem().type.rpartition(".")[2]

    @property
    def words(self) -> str:
        """The answer in an error message."""
        found = self._problem()
        text = ": ".join(filter(None, (self.problem, *found.message.splitlines()[:1])))
        return f"RavenDB answered with status {self.status}{': ' if text else ''}{text}"

    def _problem(self) -> _Problem:
        try:
            return msgspec.json.decode(self.body, type=_Problem)
        except msgspec.MsgspecError:
            return _Problem()


class RavenDBClient:
    """The server and the database of an address. Each request is sent once."""

    def __init__(self, address: RavenDBAddress, http: ClientSession, *, tls: ssl.SSLContext | bool) -> None:
        self.address = address
        self._http = http
        self._tls = tls

    async def read(
        self, method: str, path: str, *, params: Sequence[tuple[str, str]] = (), content: Any = None
    ) -> RavenDBAnswer:
        """Send a request that changes nothing. `content` is sent as JSON. Raises CommitFailed without an answer."""
        try:
            return await self._send(method, path, params=params, body=_encoded(content), headers={})
        except BROKEN as error:
            raise CommitFailed(_lost(error)) from error

    async def write(
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] = (),
        content: Any = None,
        expected: str | None = None,
    ) -> RavenDBAnswer:
        """Send a write, with a condition if `expected` is given; an empty one is "must not exist".

        Raises CommitFailed if nothing was sent, OutcomeUnknown without an answer.
        """
        headers = {} if expected is None else {"If-Match": f'"{expected}"'}
        try:
            with sent_once():
                return await self._send(method, path, params=params, body=_encoded(content), headers=headers)
        except (ClientConnectorError, ConnectionTimeoutError) as error:  # no connection was made
            raise CommitFailed(_lost(error)) from error
        except BROKEN as error:
            raise OutcomeUnknown(_lost(error)) from error

    def of_database(self, path: str) -> str:
        """Return the path of a request to the database."""
        return f"/databases/{quote(self.address.database)}/{path}"

    async def _send(
        self, method: str, path: str, *, params: Sequence[tuple[str, str]], body: bytes | None, headers: Mapping[str, str]
    ) -> RavenDBAnswer:
        data = BytesIO(body) if body is not None and len(body) > _LARGE else body
        own = {"Accept-Encoding": "identity", **({} if body is None else {"Content-Type": "application/json"})}
        async with self._http.request(
            method,
            self.address.server + path,
            params=params,
            data=data,
            headers={**own, **headers},
            ssl=self._tls,
            allow_redirects=False,
            timeout=ClientTimeout(total=None, sock_connect=self.address.timeout, sock_read=self.address.timeout),
        ) as answer:
            return RavenDBAnswer(answer.status, answer.headers, await answer.read())


@asynccontextmanager
async def open_client(address: RavenDBAddress) -> AsyncIterator[RavenDBClient]:
    """Make a client, and close it at the end; connects at the first call. Raises SetupError for unreadable files of TLS."""
    tls: ssl.SSLContext | bool = True
    if address.secure:
        tls = tls_context(
            address.server,
            cafile=address.cafile,
            certfile=address.certfile,
            keyfile=address.keyfile,
            verifies=address.verifies,
        )
    async with session() as http:
        yield RavenDBClient(address, http, tls=tls)


def failure(answer: RavenDBAnswer, *, reads: bool = False) -> OnceOnlyError:
    """Translate an answer that is an error, by allow-list. A read that failed is CommitFailed: it changes nothing.

    That a condition was not met is an answer, not an error; see `RavenDBAnswer.is_refused`.
    """
    is_definite = answer.status in _NOT_ALLOWED or answer.status == _TOO_LARGE or answer.problem in _NOT_WRITTEN
    return CommitFailed(answer.words) if reads or is_definite else OutcomeUnknown(answer.words)


def refused_setup(answer: RavenDBAnswer, address: RavenDBAddress) -> OnceOnlyError:
    """Return what a person must change when a start fails, or that the server is away."""
    if answer.status in _NOT_ALLOWED:
        return SetupError(
            f"{address.place} refused this client: check certfile, and its access to the database ({answer.words})"
        )
    if answer.has_no_database:
        return SetupError(f"{address.place} does not exist: run `onceonly schema create module:endpoint`")
    return CommitFailed(f"{address.place}: {answer.words}")


def _encoded(content: Any) -> bytes | None:
    return None if content is None else msgspec.json.encode(content)


def _lost(error: Exception) -> str:
    return f"RavenDB: {str(error) or type(error).__name__}"
