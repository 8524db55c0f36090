"""The request as a WSGI server passes it, read within a limit, and the response of an application, before it is sent."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from time import monotonic
from types import TracebackType
from typing import Any
from wsgiref.types import WSGIApplication, WSGIEnvironment

from onceonly.integrations.problems import RequestProblem
from onceonly.integrations.request_rules import ReceivedRequest
from onceonly.integrations.stored_responses import (
    MAX_KEPT,
    RECORD_SECONDS,
    IdempotencyResponse,
    endless,
    too_large,
    too_slow,
)
from onceonly.model.errors import TransactionMisused

_PORTION = 1 << 16
_SERVED = "onceonly.served"
_ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


def key_lines(environ: WSGIEnvironment) -> list[str]:
    """Return the lines of the header `Idempotency-Key`. Servers join repeated ones with a comma, which no key has."""
    found = environ.get("HTTP_IDEMPOTENCY_KEY")
    return [] if found is None else [found]


@contextmanager
def served_once(environ: WSGIEnvironment) -> Iterator[None]:
    """Enclose the handling of a request. Raises TransactionMisused inside of another one of the same request.

    The inner one would wait for the key of the outer one, and the outer one would store the refusal.
    """
    if _SERVED in environ:
        raise TransactionMisused(
            "this request is inside of idempotent(...) already, which has its key and its transaction: decorate the view, or "
            "enclose the application, and not both"
        )
    environ[_SERVED] = True
    try:
        yield
    finally:
        del environ[_SERVED]


def received_request(environ: WSGIEnvironment, key: str | None, body: bytes) -> ReceivedRequest:
    """Return what is compared of a request."""
    path = str(environ.get("SCRIPT_NAME", "")) + str(environ.get("PATH_INFO", ""))
    content_type = environ.get("CONTENT_TYPE")
    return ReceivedRequest(
        method=environ["REQUEST_METHOD"],
        path=path.encode("latin-1").decode(errors="replace"),
        query=str(environ.get("QUERY_STRING", "")).encode("latin-1"),
        content_types=[content_type] if content_type else [],
        is_encoded="HTTP_CONTENT_ENCODING" in environ,
        key=key,
        body=body,
    )


def read_body(environ: WSGIEnvironment, max_body: int, too_large_problem: Callable[[], RequestProblem]) -> bytes:
    """Read the whole body, and leave it in `wsgi.input` for the application. Raises RequestProblem."""
    length = _length(environ)
    if length is not None and length > max_body:
        raise too_large_problem()
    if length is None and not environ.get("wsgi.input_terminated"):
        if "HTTP_TRANSFER_ENCODING" in environ:
            raise RequestProblem("incomplete", "the end of the body cannot be found: send the header Content-Length")
        length = 0
    body = _read(environ["wsgi.input"], max_body + 1 if length is None else length)
    if length is not None and len(body) < length:
        raise RequestProblem("incomplete", "the request ended before its body was complete: send it again")
    if len(body) > max_body:
        raise too_large_problem()
    environ["wsgi.input"], environ["CONTENT_LENGTH"] = BytesIO(body), str(len(body))
    return body


def _length(environ: WSGIEnvironment) -> int | None:
    """Return the length that was announced. A body in chunks has none that counts (RFC 9112, 6.3)."""
    said = environ.get("CONTENT_LENGTH")
    if not said or ("HTTP_TRANSFER_ENCODING" in environ and environ.get("wsgi.input_terminated")):
        return None
    if not (said.isascii() and said.isdigit()):
        raise RequestProblem("incomplete", "the header Content-Length is not a number")
    return int(said)


def _read(stream: Any, most: int) -> bytes:
    parts, size = [], 0
    try:
        while size < most and (part := stream.read(min(_PORTION, most - size))):
            parts.append(part)
            size += len(part)
    except OSError as error:
        raise RequestProblem("incomplete", "the request ended before its body was complete: send it again") from error
    return b"".join(parts)


class WsgiRecorder:
    """Takes the response of a WSGI application instead of a server. `status_line` and `headers` are as it has given them."""

    def __init__(self, name: str) -> None:
        self.status_line = ""
        self.headers: list[tuple[str, str]] = []
        self._name = name
        self._body = bytearray()

    def record(self, application: WSGIApplication, environ: WSGIEnvironment) -> IdempotencyResponse:
        """Run the application to its end. Raises what it raises, and TransactionMisused for what cannot be stored."""
        iterable = application(environ, self.start)
        try:
            self.extend(iterable)
        finally:
            close = getattr(iterable, "close", None)
            if close is not None:
                close()
        if not self.status_line:
            raise TransactionMisused(f"a {self._name} ended without calling start_response")
        headers = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers)
        return IdempotencyResponse(int(self.status_line[:3]), headers, self.body)

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    def extend(self, iterable: Iterable[bytes]) -> None:
        until = monotonic() + RECORD_SECONDS
        for part in iterable:
            self.write(part)
            if monotonic() > until:
                raise too_slow(self._name)

    def write(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > MAX_KEPT:
            raise too_large(len(self._body))

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExceptionInfo | None = None, /
    ) -> Callable[[bytes], object]:
        """Take status and headers. With `exc_info` they replace earlier ones, unless a part of the body was written."""
        if exc_info is not None and exc_info[1] is not None and self._body:
            raise exc_info[1].with_traceback(exc_info[2])
        if exc_info is None and self.status_line:
            raise TransactionMisused(f"a {self._name} called start_response twice")
        if not status[:3].isdigit():
            raise TransactionMisused(f"a {self._name} has the status {status[:80]!r}, which does not begin with a number")
        if any(name.lower() == "content-type" and "text/event-stream" in value for name, value in headers):
            raise endless(self._name)
        self.status_line, self.headers = status, headers
        return self.write
