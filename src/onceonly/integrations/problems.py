"""What a client is told when its request is refused: problem details (RFC 9457), with a word in `code` for programs."""

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_SECONDS = 1
"""Seconds after which a client may ask again."""

_TITLES = {
    400: "Bad Request",
    409: "Conflict",
    413: "Content Too Large",
    422: "Unprocessable Content",
    503: "Service Unavailable",
}


class RequestProblem(Exception):
    """A request that is answered with a problem, and was not done. With `retry` the client may repeat it soon.

    The title is that of the status unless one is given.
    """

    def __init__(self, status: int, code: str, detail: str, *, retry: bool = False, title: str = "") -> None:
        """Keep what the client is told."""
        super().__init__(detail)
        self.status, self.code, self.detail, self.retry = status, code, detail, retry
        self.title = title or _TITLES[status]

    @property
    def response(self) -> Response:
        """Give the response that says it."""
        said = {"title": self.title, "status": self.status, "code": self.code, "detail": self.detail}
        headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if self.retry else None
        return Response(msgspec.json.encode(said), self.status, headers, MEDIA_TYPE)
