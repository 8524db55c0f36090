"""The ASGI application that executes requests of other services once: PUT, POST, GET, DELETE (docs/explanation/http.md)."""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any, NamedTuple

from onceonly.algorithms.remote_execution import bury, execute, keep
from onceonly.endpoint.failures import failed
from onceonly.endpoint.host import Host
from onceonly.formats.bodies import BodyError, encode_body
from onceonly.formats.log_events import EventLogger
from onceonly.formats.remote import (
    DEADLINE,
    OPERATION,
    PROTOCOL,
    STATUS,
    VERSION,
    decode_response,
    encode_response,
)
from onceonly.model.errors import (
    ConflictError,
    HandlerFailed,
    InvalidEffect,
    OnceOnlyError,
    PermanentFailure,
    RetryableError,
)
from onceonly.model.headers import content_type_problem
from onceonly.model.limits import too_long
from onceonly.model.message import FailureKind, Headers, Message
from onceonly.model.remote import LARGEST, Request, Response
from onceonly.model.transaction import BlockDecision, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly.ports.remote import RemoteRequests, Responders
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Environment
from onceonly.runtime.worker.responders import GatedRequests, MarkedResponders

ProviderScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Principal = Callable[[MutableMapping[str, Any]], str | None]
"""Returns the caller of an ASGI scope: its name, "" without a distinction, or None to refuse the request with 401."""

LONGEST_DEADLINE_MS = 86_400_000
"""Milliseconds ahead that a deadline may be: tombstones stand as long."""
TOMBSTONE_MARGIN_MS = 600_000
"""Milliseconds for which a tombstone stands beyond the deadline: what a PUT may take that came just in time."""
LONGEST_EXECUTION_MS = 3_600_000

_ID = re.compile(r"[A-Za-z0-9._~-]{1,200}")
_NOT_KEPT = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie", "expect", "host"}
    | {"proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
)
"""Headers that are about the connection, or a secret: responders do not see them."""
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.RESET_CONTENT})
_log = EventLogger(logging.getLogger("onceonly.http"))


class HttpAnswer(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}

    @classmethod
    def words(cls, status: int, words: str) -> "HttpAnswer":
        return cls(status, f"{words}\n".encode(), {"content-type": "text/plain; charset=utf-8"})


NO_DEADLINE = HttpAnswer.words(400, f"{DEADLINE} must be a time in milliseconds since 1970, at most one day ahead")


class ProtocolRequest(NamedTuple):
    """One request of the protocol, taken apart: `key` names the request r, and whose it is."""

    method: str
    id: str
    key: str
    headers: Mapping[str, str]


class TooLarge(OnceOnlyError):
    """The body has more bytes than are taken."""


class HttpApp:
    """The application of one endpoint. It may be mounted anywhere: the last part of the path is the request."""

    def __init__(self, host: Host, *, principal: Principal | None) -> None:
        self._host = host
        self._principal = principal

    async def __call__(self, scope: ProviderScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await _send(send, await self._answer(scope, receive))
        else:
            raise RuntimeError(f"this application serves HTTP only, not {scope['type']}")

    async def _live(self, receive: Receive, send: Send) -> None:
        """Keep the endpoint open from startup to shutdown."""
        await receive()
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._host.opened())
            except OnceOnlyError as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: ProviderScope, receive: Receive) -> HttpAnswer:
        """Answer; whatever is not an answer of the protocol's makes the caller ask again."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get(PROTOCOL) != VERSION:
            return HttpAnswer.words(501, f"unsupported protocol: send the header {PROTOCOL}: {VERSION}")
        id_ = str(scope["path"]).rpartition("/")[2]
        if not _ID.fullmatch(id_):
            return HttpAnswer.words(400, "the last part of the path must be a request id of letters, digits and . _ ~ -")
        who = self._principal(scope) if self._principal is not None else ""
        if who is None:
            return HttpAnswer.words(401, "the caller is not authenticated")._replace(
                headers={"www-authenticate": "Bearer", PROTOCOL: ""}
            )
        return await self._settle(ProtocolRequest(scope["method"], id_, f"{who}\0{id_}", headers), receive)

    async def _settle(self, asked: ProtocolRequest, receive: Receive) -> HttpAnswer:
        """Serve what can be served here. The client repeats what has an unknown outcome."""
        ports = self._host.bound_ports()
        if ports is None or ports.remote_requests is None or ports.responders is None:
            _log.error("request rejected: endpoint not open, or without responders", extra={"endpoint": self._host.name})
            return HttpAnswer.words(
                503, "the endpoint is not open: serve this application with its lifespan, or within endpoint.running()"
            )
        row, responders = self._host.counters_here(), ports.responders
        marked = responders if row is None else MarkedResponders(responders, row, ports.endpoint)
        here = ServingContext(ports, GatedRequests(ports.remote_requests), marked, self._host.current_environment())
        try:
            return await self._serve(asked, receive, here)
        except HandlerFailed as error:
            later = error.failure.kind is FailureKind.LATER
            _log.warning(
                "responder failed, request will be retried",
                extra={"endpoint": ports.endpoint, "request": asked.id, "reason": error.failure.reason},
                exc_info=None if later else error.__cause__ or error,
            )
            return HttpAnswer.words(503 if later else 500, "nothing happened: repeat the request")
        except (ConflictError, RetryableError) as error:
            _log.info("request not completed, must be retried", extra={"endpoint": ports.endpoint, "reason": str(error)})
            return HttpAnswer.words(503, "the outcome is unknown: repeat the request")

    async def _serve(self, asked: ProtocolRequest, receive: Receive, here: "ServingContext") -> HttpAnswer:
        now = here.environment.clock.now()
        match asked.method:
            case "PUT":
                return await self._put(asked, receive, here)
            case "POST":
                return await _post(asked, here)
            case "GET":
                entry = await here.requests.entry(asked.key)
                return (
                    _to_stored_answer(entry.answer)
                    if entry and entry.answer is not None
                    else HttpAnswer.words(404, "no response")
                )
            case "DELETE":
                deadline = _deadline(asked, now)
                if deadline is None:
                    return NO_DEADLINE
                await bury(asked.key, here.requests, until=max(deadline, now) + TOMBSTONE_MARGIN_MS)
                return HttpAnswer(204)
            case _:
                answered = HttpAnswer.words(405, "method not allowed: use PUT, POST, GET or DELETE")
                return answered._replace(headers={**answered.headers, "allow": "PUT, POST, GET, DELETE"})

    async def _put(self, asked: ProtocolRequest, receive: Receive, here: "ServingContext") -> HttpAnswer:
        operation, known = asked.headers.get(OPERATION, ""), self._host.operations()
        deadline = _deadline(asked, here.environment.clock.now())
        if deadline is None:
            return NO_DEADLINE
        if operation not in known:
            return HttpAnswer.words(404, f"no responder for operation {operation!r:.100}: use one of {', '.join(known)}")
        try:
            body = await _body(receive)
        except TooLarge as error:
            return HttpAnswer.words(413, str(error))
        sent: Headers = tuple(
            (name, value)
            for name, value in sorted(asked.headers.items())
            if name not in _NOT_KEPT and not name.startswith("onceonly-")
        )
        kind = asked.headers.get("content-type", "application/octet-stream")
        request = Request(operation=operation, body=body, content_type=kind, headers=sent)
        if await keep(asked.key, request, here.requests, deadline=deadline, now=here.environment.clock.now()):
            return HttpAnswer(204)
        return HttpAnswer.words(
            410, "the deadline has passed, the request was deleted before it arrived, or it exists with another body"
        )


class ServingContext(NamedTuple):
    ports: Ports
    requests: RemoteRequests
    responders: Responders
    environment: Environment


async def _post(asked: ProtocolRequest, here: ServingContext) -> HttpAnswer:
    opening = TransactionAttempt(
        endpoint=here.ports.endpoint,
        attempt=here.environment.ids.new_id(),
        max_commit=LONGEST_EXECUTION_MS,
        key=asked.key,
    )

    async def run(request: Request, resources: Resources) -> BlockDecision:
        left, decision = await here.responders.respond(_message(asked, request), resources)
        return BlockDecision(decision.effects, encode_response(response_for(left)))

    try:
        answer = await execute(opening, run, here.requests, here.ports)
    except HandlerFailed as error:
        if error.failure.kind is not FailureKind.REJECTED or isinstance(error.__cause__, InvalidEffect):
            raise  # a responder's mistake is no answer, and nothing of it is for the caller
        answer = await execute(opening, _refusing(error.failure.reason), here.requests, here.ports)
    return HttpAnswer.words(410, "this request does not exist") if answer is None else _to_answer(_stored_response(answer))


def _refusing(reason: str) -> Callable[[Request, Resources], Awaitable[BlockDecision]]:
    """Execute nothing, and answer why: what the responder did before it said so was given up."""

    async def refuse(_request: Request, _resources: Resources) -> BlockDecision:
        return BlockDecision((), encode_response(rejection(reason)))

    return refuse


def rejection(reason: str) -> Response:
    return Response(status=422, body=json.dumps({"rejected": reason}).encode())


def response_for(left: object) -> Response:
    """Make a response of what a responder returned. It is stored for good, so what cannot be sent raises HandlerFailed."""
    if left is None:
        return Response(status=204)
    if not isinstance(left, Response):
        try:
            body, kind = encode_body(left)
        except BodyError as error:
            raise failed(FailureKind.EXCEPTION, f"the value that the responder returned cannot be sent: {error}") from error
        left = Response(body=body, content_type=kind)
    if problem := _response_problem(left):
        raise failed(FailureKind.EXCEPTION, problem)
    return left


def _response_problem(response: Response) -> str:
    """Return why a response can never be sent, or read back; empty when it can."""
    status = response.status
    if type(status) is not int and not isinstance(status, HTTPStatus):
        return f"the responder returned a status of type {type(status).__name__}: use an int"
    if not (200 <= status < 300 or 400 <= status < 500):  # noqa: PLR2004 - what is an answer for good
        return f"the responder returned status {int(status)}: use 200 to 299 or 400 to 499"
    if problem := content_type_problem(response.content_type):
        return f"the content type that the responder returned {problem}"
    return _body_problem(response.body, status)


def _body_problem(body: object, status: int) -> str:
    if not isinstance(body, bytes):
        return f"the responder returned a body of type {type(body).__name__}: use bytes"
    if len(body) > LARGEST:
        return f"the response of the responder is {len(body):,} bytes long; the limit is {LARGEST:,}"
    if body and status in _WITHOUT_BODY:
        return f"the responder returned a body with status {int(status)}, which has none: use another status, or no body"
    return ""


def _message(asked: ProtocolRequest, request: Request) -> Message:
    trace = tuple(item for item in request.headers if item[0] == "traceparent" and not too_long([item]))  # W3C: ignore others
    return Message(
        id=asked.id,
        source="http",
        type=request.operation,
        body=request.body,
        datacontenttype=request.content_type,
        extensions=trace,
        headers=request.headers,
    )


def _stored_response(stored: bytes) -> Response:
    """Read a stored response. Raises PermanentFailure, UpgradeRequired."""
    response = decode_response(stored)
    if problem := _response_problem(response):
        raise PermanentFailure(f"the stored response cannot be sent: {problem}")
    return response


def _to_answer(response: Response) -> HttpAnswer:
    return HttpAnswer(response.status, response.body, {"content-type": response.content_type} if response.body else {})


def _to_stored_answer(stored: bytes) -> HttpAnswer:
    response = _stored_response(stored)
    return HttpAnswer(200, response.body, {"content-type": response.content_type, STATUS: str(response.status)})


def _deadline(asked: ProtocolRequest, now: int) -> int | None:
    text = asked.headers.get(DEADLINE, "")
    deadline = int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None  # noqa: PLR2004 - year 30000
    return deadline if deadline is not None and deadline <= now + LONGEST_DEADLINE_MS else None


async def _body(receive: Receive) -> bytes:
    """Read all of a body. Raises TooLarge, and OutcomeUnknown when the caller went away."""
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RetryableError("the caller disconnected before the body was complete")
        body += event.get("body", b"")
        if len(body) > LARGEST:
            raise TooLarge(f"the body is longer than the limit of {LARGEST:,} bytes")
        if not event.get("more_body"):
            return bytes(body)


async def _send(send: Send, answered: HttpAnswer) -> None:
    headers = {PROTOCOL: VERSION, "content-length": str(len(answered.body)), **answered.headers}
    if answered.status == 204:  # noqa: PLR2004 - it has no body
        del headers["content-length"]
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items() if value]
    await send({"type": "http.response.start", "status": answered.status, "headers": raw})
    await send({"type": "http.response.body", "body": answered.body})
