"""Bodies: users' classes <-> bytes, the type names they travel under, and the answers that are kept for a client's key.

JSON throughout, but `bytes`, which pass untouched. Unknown fields are ignored, so that a sender may add one before its
receivers know it. `codecs` has how each kind of class is read and written.
"""

from collections.abc import Callable
from functools import lru_cache
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_origin

import msgspec

from onceonly.formats.body_differences import untyped_difference
from onceonly.formats.body_fields import is_native, is_pydantic, unsendable
from onceonly.formats.codecs import BINARY, CODECS, JSON, BodyError, Codec, codec_for, kind_name
from onceonly.model.identity import hash_of
from onceonly.model.limits import LONG
from onceonly.model.message import CLASS, Headers

__all__ = [
    "BINARY",
    "CLASSES",
    "JSON",
    "SUPPORTED",
    "BodyError",
    "BodyKind",
    "Codec",
    "MessageKind",
    "body_kind",
    "check_written",
    "codec_for",
    "encode_body",
    "is_anonymous",
    "is_supported",
    "message",
    "message_kind",
    "type_name",
]

CLASSES = "a dataclass, a msgspec struct, a pydantic model, an attrs class"
"""The classes of users that bodies and entities can be of, in words."""
SUPPORTED = f"{CLASSES}, dict, list, str, int, float, bool, None or bytes"

_NAME = "__onceonly_type__"
_KIND = "__onceonly_kind__"
MessageKind = Literal["command", "event"]
"""What messages of a class are declared to be."""
_Class = TypeVar("_Class", bound=type)


def message(name: str, *, kind: Literal["command", "event"] | None = None) -> Callable[[_Class], _Class]:
    """Set the name of the message type of a class. The default is the name of the class.

    `kind` declares the class as a command, which can only be sent, or as an event, which can only be published. An endpoint
    does not subscribe to a command. Without it, messages of the class can be both. Subclasses do not inherit name and kind.

    Raises ValueError for an empty name and for another kind.
    """
    if kind not in (None, "command", "event"):
        raise ValueError(f'@message: kind must be "command" or "event", not {kind!r}')
    if not name.strip():
        raise ValueError('@message needs the name of the type, such as @message("shop.order-placed.v1")')

    def name_it(cls: _Class) -> _Class:
        setattr(cls, _NAME, name)
        setattr(cls, _KIND, kind)
        _described.cache_clear()
        return cls

    return name_it


class BodyKind(NamedTuple):
    """What is known of the bodies of one class. For `type` and `declared`, see `type_name` and `message_kind`.

    `class_name` is module and name of a class whose messages have its bare name, which another class may have as well. It is
    empty for a class with `@message`, for types without a name of their own, and in a program that is run as a script. It is
    also empty if it is too long to send.
    """

    type: str | None
    declared: MessageKind | None
    class_name: str
    class_extension: Headers
    """The attribute that `class_name` is sent in; none if it is empty."""
    encode: Callable[[Any], bytes]
    """Raises BodyError for a value that would not read back equal."""
    content_type: str


def _describe(cls: Any) -> BodyKind:
    """Describe a class, or what a generic class is for. A class that bodies cannot be is described as well."""
    name, declared = type_name(cls), message_kind(cls)
    own = get_origin(cls) or cls
    full = "" if name is None or _given_name(cls) or own.__module__ == "__main__" else f"{own.__module__}.{own.__qualname__}"
    if len(full.encode(errors="replace")) > LONG:
        full = ""
    extension: Headers = ((CLASS, full),) if full else ()
    try:
        codec = _outgoing(dict if isinstance(cls, type) and issubclass(cls, dict) else cls)
    except BodyError as error:
        return BodyKind(name, declared, full, extension, _refusing(str(error)), JSON)
    return BodyKind(name, declared, full, extension, codec.encode, codec.content_type)


_described = lru_cache(CODECS)(_describe)
body_kind: Callable[[Any], BodyKind] = _described
"""Describes a class, or a generic one with its parameters: once."""


def type_name(cls: Any) -> str | None:
    """Return the type name of a class, or None for types without one of their own: JSON's, and `bytes`."""
    if is_anonymous(cls):
        return None
    return _given_name(cls) or str(cls.__name__)


def message_kind(cls: Any) -> MessageKind | None:
    """Return what the messages of a class were declared to be; None if they can be commands and events."""
    found: MessageKind | None = getattr(_declaring(cls), "__dict__", {}).get(_KIND)
    return found


def _given_name(cls: Any) -> str | None:
    found: str | None = cls.__dict__.get(_NAME) or getattr(_declaring(cls), "__dict__", {}).get(_NAME)
    return found


def _declaring(cls: Any) -> Any:
    """Return the class that `@message` decorated for this one: the class itself, or the generic class of `Envelope[Order]`."""
    models = getattr(cls, "__pydantic_generic_metadata__", None)
    return (models and models.get("origin")) or get_origin(cls) or cls


_ANONYMOUS = frozenset({dict, list, str, int, float, bool, NoneType, bytes})


def is_anonymous(kind: object) -> bool:
    """Return whether bodies of this kind do not know their own message type."""
    return kind in _ANONYMOUS if isinstance(kind, type) else get_origin(kind) in (dict, list)


def is_supported(kind: object) -> bool:
    own = kind if isinstance(kind, type) else get_origin(kind)
    return is_anonymous(kind) or (isinstance(own, type) and (is_native(own) or is_pydantic(own)))


def encode_body(value: object) -> tuple[bytes, str]:
    """Return the bytes of a body and their content type. Raises BodyError for a value that would not read back equal."""
    kind = body_kind(value.__class__)
    return kind.encode(value), kind.content_type


def check_written(kind: Any) -> None:
    """Raise BodyError for a class no object of which can be written, as far as the class shows."""
    if problem := unsendable(kind):
        raise BodyError(problem)


def _outgoing(kind: Any) -> Codec:
    if not is_supported(kind):
        raise BodyError(f"a body must be {SUPPORTED}, not {kind_name(kind)}")
    return codec_for(kind)


def _refusing(reason: str) -> Callable[[Any], bytes]:
    def refuse(_: object) -> bytes:
        raise BodyError(reason)

    return refuse


_BYTES, _JSON = b"\x00", b"\x01"
_encode = msgspec.json.Encoder(order="deterministic").encode


def encode_answer(answer: object) -> bytes | None:
    """Return an answer as it is stored; None stays None. Raises BodyError for what clients would get as something else.

    Clients get JSON's own types: an object of a class is a dict for them.
    """
    if answer is None:
        return None
    kind, encoded = _written(answer)
    is_class = is_supported(type(answer)) and not is_anonymous(type(answer))
    if kind == _JSON and not is_class and (difference := untyped_difference(answer)) is not None:
        raise BodyError(str(difference))
    return kind + encoded


def decode_answer(stored: bytes | None) -> Any:
    """Return what a client gets, the first time as every other: bytes, or what JSON has."""
    if stored is None:
        return None
    return stored[1:] if stored[:1] == _BYTES else msgspec.json.decode(stored[1:])


def request_fingerprint(request: object, scope: str | None = None) -> bytes:
    """Return 16 bytes that identify a request, and its scope where it has one. The order of keys in a dict is ignored.

    Raises BodyError.
    """
    parts = () if request is None else _written(request)
    return hash_of(b"request", *parts) if scope is None else hash_of(b"scoped request", scope.encode(), *parts)


def _written(value: object) -> tuple[bytes, bytes]:
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES, bytes(value)
    if is_supported(type(value)) and not is_anonymous(type(value)) and not isinstance(value, dict | list):
        return _JSON, encode_body(value)[0]
    try:
        return _JSON, _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyError(f"{type(value).__name__} cannot be encoded as JSON: {error}") from error
