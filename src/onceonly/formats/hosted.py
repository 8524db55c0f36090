"""Headers of a message that a host hands over, whatever types its client library gives them."""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from onceonly.formats.cloudevents import PREFIX, attribute_of
from onceonly.model.hosted import HostedMessage
from onceonly.model.message import Headers

__all__ = ["headers_of"]


def headers_of(message: HostedMessage) -> Headers:
    """Return the headers as text, with the host's id where no header has a CloudEvents id.

    Bytes that are not UTF-8 become lone surrogates, as with any transport: the endpoint decides about them. Raises TypeError.
    """
    headers = tuple(_pairs(message.headers))
    if not isinstance(message.id, str):
        raise TypeError(f"id must be text, not {type(message.id).__name__}: use str(...)")
    if message.id and "id" not in [attribute_of(name) for name, _ in headers]:
        headers = (*headers, (PREFIX + "id", message.id))
    return headers


def _pairs(headers: Mapping[str, object] | Iterable[tuple[str, object]]) -> Iterator[tuple[str, str]]:
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be text, not {type(name).__name__}: decode it")
        if value is not None:
            yield name, _text(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_text)
    return str(value)
