"""Headers of a message that a host hands over, whatever types its client library gives them."""

import json
import reprlib
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
    if message.id is not None and not isinstance(message.id, str):
        raise TypeError(f"id must be text or None, not {type(message.id).__name__}: {_advice(message.id)}")
    if message.id and "id" not in [attribute_of(name) for name, _ in headers]:
        headers = (*headers, (PREFIX + "id", message.id))
    return headers


def _advice(id_: object) -> str:
    return "decode it" if isinstance(id_, bytes | bytearray | memoryview) else "use str(...)"


def _pairs(headers: object) -> Iterator[tuple[str, str]]:
    if headers is None:
        return
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a mapping or pairs of name and value, not {type(headers).__name__}")
    pairs: Iterable[object] = headers.items() if isinstance(headers, Mapping) else headers
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:  # noqa: PLR2004 - a name and a value
            raise TypeError(f"headers must be a mapping or pairs of name and value, not a sequence of {reprlib.repr(pair)}")
        name, value = pair
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
