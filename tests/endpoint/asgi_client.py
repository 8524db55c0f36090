"""Asks an ASGI application without any server in between."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from onceonly.endpoint.http_app import HttpApp

FAR = 60_000


class Got(NamedTuple):
    """What was answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_protocols(self) -> bool:
        """Whether it has the header of the protocol."""
        return self.headers.get("onceonly-http") == "1"


async def ask(app: HttpApp, method: str, path: str, body: bytes = b"", **headers: object) -> Got:
    """Ask; `headers` are written with low lines, and the protocol's own is there unless it is given."""
    sent = {"onceonly_http": "1", **headers}
    raw = [(name.replace("_", "-").encode(), str(value).encode()) for name, value in sent.items()]
    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        events.append(event)

    await app({"type": "http", "method": method, "path": path, "headers": raw}, receive, send)
    start, end = events
    return Got(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, end["body"])
