"""The response to a client whose request is refused: problem details (RFC 9457), with a word in `code` for programs."""

from collections.abc import Iterable
from typing import Any

import msgspec

from onceonly.integrations.stored_responses import IdempotencyResponse

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
"""Seconds after which a client may ask again."""

_TITLES = {
    400: "Bad Request",
    409: "Conflict",
    413: "Content Too Large",
    422: "Unprocessable Content",
    500: "Commit Refused",
    503: "Service Unavailable",
}
STATUSES = {
    "key-missing": 400,
    "malformed-key": 400,
    "incomplete": 400,
    "in-progress": 409,
    "too-large": 413,
    "key-reused": 422,
    "commit-refused": 500,
    "not-done": 503,
    "unknown": 503,
}
"""All problems that a request can be answered with, by their `code`."""
_DESCRIPTIONS = {
    400: "The idempotency key is missing or malformed, or the request is incomplete",
    409: "Another request with this idempotency key is in progress: repeat it later",
    413: "The body is too large",
    422: "The request is invalid, or its idempotency key was used for another request",
    500: "The database rejected the changes of the request: repeating it does not help",
    503: "The request changed nothing, or its outcome is unknown: repeat it with the same idempotency key",
}
_RETRY_AFTER = {"description": "Seconds after which to repeat the request", "schema": {"type": "integer"}}


class RequestProblem(Exception):
    """A request that is answered with a problem, and was not done. With `retry` the client may repeat it soon."""

    def __init__(self, code: str, detail: str, *, retry: bool = False) -> None:
        """Keep the text for the client. The status follows from the code."""
        super().__init__(detail)
        self.status, self.code, self.detail, self.retry = STATUSES[code], code, detail, retry

    @property
    def response(self) -> IdempotencyResponse:
        """The response, which is not stored."""
        said = {"title": _TITLES[self.status], "status": self.status, "code": self.code, "detail": self.detail}
        body = msgspec.json.encode(said)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        if self.retry:
            headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        return IdempotencyResponse(self.status, tuple(headers), body)


def described(*, key_required: bool) -> dict[str, dict[str, Any]]:
    return {str(status): _described(status, key_required=key_required) for status in _TITLES}


def _described(status: int, *, key_required: bool) -> dict[str, Any]:
    codes = [code for code, of in STATUSES.items() if of == status and (key_required or code != "key-missing")]
    found = {"description": _DESCRIPTIONS[status], "content": {MEDIA_TYPE: {"schema": _schema(status, codes)}}}
    return found | {"headers": {"Retry-After": _RETRY_AFTER}} if status in (409, 503) else found


def _schema(status: int, codes: Iterable[str]) -> dict[str, Any]:
    return {
        "title": "Problem",
        "type": "object",
        "required": ["title", "status", "code", "detail"],
        "properties": {
            "title": {"type": "string"},
            "status": {"type": "integer", "const": status},
            "code": {"type": "string", "enum": list(codes)},
            "detail": {"type": "string"},
        },
    }
