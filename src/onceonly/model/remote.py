"""Requests to other services that are executed once: what is asked, what is answered, and what is left to do after a commit."""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.model.message import Headers, Message

HTTP = "http"
"""The kind of artifact that a waiting request is."""
REQUEST = "onceonlyrequest"
"""The extension of a follow-up message that says where the response is."""


LARGEST = 1024 * 1024
"""Bytes of a request's body, and of a response's."""


class Verb(StrEnum):
    """What is left to do after a commit: have a request executed, or have request and response forgotten."""

    POST = "POST"
    DELETE = "DELETE"


class RemoteRequest(Struct, frozen=True):
    """One call to make after the commit, as often as it takes; `url` is that of one request, which belongs to one attempt."""

    verb: Verb
    url: str


class Request(Struct, frozen=True, kw_only=True):
    """What is asked of another service: which of its operations, with what."""

    operation: str
    body: bytes
    content_type: str = "application/json"
    headers: Headers = ()


class Response(Struct, frozen=True, kw_only=True):
    """The response of another service: a status of 200 to 299 or of 400 to 499, and a body."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"

    @property
    def is_success(self) -> bool:
        """Whether the status is 200 to 299."""
        return 200 <= self.status < 300  # noqa: PLR2004 - what HTTP calls success

    def json(self, kind: Any = Any) -> Any:
        """Decode the body, as `kind` if given. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body, type=kind)


def requested(message: Message) -> str:
    """Give the URL of the request that a message follows up; empty for every other message."""
    return message.extension(REQUEST)
