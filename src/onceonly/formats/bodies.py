"""Message bodies: users' classes <-> bytes, and the type names they travel under.

JSON throughout, but `bytes`, which pass untouched. Unknown fields are ignored, so that a sender may add one before its
receivers know it. `codecs` has how each kind of class is read and written.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar, get_origin

from onceonly.formats.body_fields import is_native, is_pydantic, unsendable
from onceonly.formats.codecs import BINARY, CODECS, JSON, BodyError, Codec, codec_for, kind_name
from onceonly.model.message import CLASS, Headers
from onceonly.model.sizes import LONG

__all__ = [
    "BINARY",
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

SUPPORTED = "a dataclass, a msgspec struct, a pydantic model, an attrs class, dict, list or bytes"

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
    empty for a class with `@message`, for `dict`, `list` and `bytes`, in a program that is run as a script, and if it is too
    long to send.
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
    """Give the type name of a class, or None for `dict`, `list` and `bytes`, which have none of their own."""
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


def is_anonymous(kind: object) -> bool:
    """Return whether bodies of this kind do not know their own message type."""
    return kind is dict or kind is bytes or kind is list or (not isinstance(kind, type) and get_origin(kind) in (dict, list))


def is_supported(kind: object) -> bool:
    """Return whether this is a class that bodies can be."""
    own = kind if isinstance(kind, type) else get_origin(kind)
    return is_anonymous(kind) or (isinstance(own, type) and (is_native(own) or is_pydantic(own)))


def encode_body(value: object) -> tuple[bytes, str]:
    """Give the bytes of a body and their content type. Raises BodyError for a value that would not read back equal."""
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
