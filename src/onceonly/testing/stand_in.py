"""A stand-in for an API of another company, for tests over HTTP. It remembers idempotency keys, and fails on demand."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from enum import Enum
from typing import Any, NamedTuple

from onceonly.model.remote import Response

_Message = MutableMapping[str, Any]


class Fault(Enum):
    """What goes wrong with one request."""

    FAILS = "it is answered 503, and not executed"
    FAILS_AFTER = "it is executed, and answered 500"
    IN_FLIGHT = "it is answered 409, and not executed"
    RATE_LIMITED = "it is answered 429 with Retry-After: 1, and not executed"
    LATE = "it is executed, and answered too late"
    DIES = "it is executed, and the connection ends without an answer"
    REDIRECTS = "it is answered 307, and not executed"


class StandInRequest(NamedTuple):
    """A request that the stand-in has received. `headers` have lower-case names. `key` is empty if it came without one."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    key: str


def _succeed(_request: StandInRequest) -> Response:
    return Response(body=b"{}")


class StandInApi:
    """An ASGI application that stands for an API with idempotency keys. Serve it with uvicorn, and name its URL in a `Peer`.

    * `answer`: what a request is answered when it is executed. Default: 200 and an empty JSON object.
    * `header`: the header with the key. A request without it is executed each time it comes.
    * `faults`: what goes wrong with each request, in their order. None, and the end of the faults, for nothing.
    * `late`: seconds after which a request is answered that is answered too late.

    `received` are all requests, in the order of their arrival. `executed` are those that were executed, each key once.
    """

    def __init__(
        self,
        answer: Callable[[StandInRequest], Response] = _succeed,
        *,
        header: str = "Idempotency-Key",
        faults: Iterable[Fault | None] = (),
        late: float = 5.0,
    ) -> None:
        self.received: list[StandInRequest] = []
        self.executed: list[StandInRequest] = []
        self._answer = answer
        self._header = header.lower()
        self._faults: Iterator[Fault | None] = iter(faults)
        self._late = late
        self._known: dict[str, Response] = {}

    def forget_keys(self) -> None:
        """Forget all keys, as such a service does after its time."""
        self._known.clear()

    async def __call__(
        self,
        scope: _Message,
        receive: Callable[[], Awaitable[_Message]],
        send: Callable[[_Message], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application serves HTTP only, not {scope['type']}")
        request = await self._read(scope, receive)
        self.received.append(request)
        fault = next(self._faults, None)
        refusal = _REFUSALS.get(fault) if fault else None
        if refusal is not None:
            await _respond(send, Response(status=refusal[0]), refusal[1])
            return
        response = self._execute(request)
        if fault is Fault.DIES:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
            return  # the server closes the connection, since the body is missing
        if fault is Fault.LATE:
            await asyncio.sleep(self._late)
        await _respond(send, Response(status=500) if fault is Fault.FAILS_AFTER else response)

    async def _read(self, scope: _Message, receive: Callable[[], Awaitable[_Message]]) -> StandInRequest:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return StandInRequest(scope["method"], scope["path"], headers, body, headers.get(self._header, ""))

    def _execute(self, request: StandInRequest) -> Response:
        known = self._known.get(request.key) if request.key else None
        if known is not None:
            return known
        response = self._answer(request)
        self.executed.append(request)
        if request.key:
            self._known[request.key] = response
        return response


_REFUSALS: dict[Fault, tuple[int, tuple[tuple[bytes, bytes], ...]]] = {
    Fault.FAILS: (503, ()),
    Fault.IN_FLIGHT: (409, ()),
    Fault.RATE_LIMITED: (429, ((b"retry-after", b"1"),)),
    Fault.REDIRECTS: (307, ((b"location", b"http://127.0.0.1:1/elsewhere"),)),
}
"""The status and the headers of the answers to requests that are not executed."""


async def _respond(
    send: Callable[[_Message], Awaitable[None]], response: Response, more: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    length = str(len(response.body)).encode()
    headers = [(b"content-type", response.content_type.encode()), (b"content-length", length), *more]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
