"""Message bodies: users' classes <-> bytes, and the type names they travel under.

JSON throughout, but `bytes`, which pass untouched. Dataclasses, msgspec structs and attrs classes go through msgspec, pydantic
models through pydantic, which is never imported here: a class can only be pydantic's when pydantic is there already.
OutcomeUnknown fields are ignored, so that a sender may add one before its receivers know it.
"""

import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar, get_origin

import msgspec

JSON = "application/json"
BINARY = "application/octet-stream"
SUPPORTED = "a dataclass, a msgspec struct, a pydantic model, an attrs class, dict or bytes"

_NAME = "__onceonly_type__"
_KIND = "__onceonly_kind__"
MessageKind = Literal["command", "event"]
"""What messages of a class are declared to be."""
_CODECS = 1024
_Class = TypeVar("_Class", bound=type)
_encode_json = msgspec.json.Encoder().encode


class BodyError(ValueError):
    """This body cannot be read as, or written from, this class; the message says why."""


class Codec(Protocol):
    """Both directions for one class, compiled once."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """Give the object. Raises BodyError."""

    def encode(self, value: Any) -> bytes:
        """Give the bytes. Raises BodyError."""


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
        return cls

    return name_it


def type_name(cls: type) -> str | None:
    """Give the type name of a class, or None for `dict` and `bytes`, which have none of their own."""
    return None if is_anonymous(cls) else str(vars(cls).get(_NAME, cls.__name__))


def message_kind(cls: object) -> MessageKind | None:
    """Return what the messages of a class were declared to be; None if they can be commands and events."""
    found: MessageKind | None = getattr(cls, "__dict__", {}).get(_KIND)
    return found


def is_anonymous(kind: object) -> bool:
    """Return whether bodies of this kind do not know their own message type."""
    return kind is dict or kind is bytes or (not isinstance(kind, type) and get_origin(kind) is dict)


def is_supported(kind: object) -> bool:
    """Return whether this is a class that bodies can be."""
    return is_anonymous(kind) or (isinstance(kind, type) and (_is_native(kind) or _is_pydantic(kind)))


def codec_for(kind: Any) -> Codec:
    """Give the codec of a supported class. Raises BodyError when a field of it cannot be served."""
    return _compiled(kind)


def encode_body(value: object) -> tuple[bytes, str]:
    """Give the bytes of a body and their content type. Raises BodyError."""
    kind: Any = dict if isinstance(value, dict) else type(value)
    codec = _outgoing(kind)
    return codec.encode(value), codec.content_type


class _Untouched:
    content_type = BINARY

    def decode(self, body: bytes) -> Any:
        return body

    def encode(self, value: Any) -> bytes:
        return bytes(value)


class _Native:
    content_type = JSON

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode

    def decode(self, body: bytes) -> Any:
        try:
            return self._decode(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so is invalid UTF-8
            raise BodyError(f"the body is not a valid {_words(self._kind)}: {error}") from error

    def encode(self, value: Any) -> bytes:
        try:
            return _encode_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(f"{_words(self._kind)} cannot be encoded as JSON: {error}") from error


class _Pydantic:
    content_type = JSON

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._adapter = sys.modules["pydantic"].TypeAdapter(kind)

    def decode(self, body: bytes) -> Any:
        try:
            return self._adapter.validate_json(body)
        except ValueError as error:
            raise BodyError(f"the body is not a valid {_words(self._kind)}: {_pydantic_words(error)}") from error

    def encode(self, value: Any) -> bytes:
        try:
            return bytes(self._adapter.dump_json(value, by_alias=True))
        except (TypeError, ValueError, RecursionError) as error:
            raise BodyError(f"{_words(self._kind)} cannot be encoded as JSON: {error}") from error


@lru_cache(_CODECS)
def _outgoing(kind: Any) -> Codec:
    if not is_supported(kind):
        raise BodyError(f"a body must be {SUPPORTED}, not {_words(kind)}")
    return codec_for(kind)


@lru_cache(_CODECS)
def _compiled(kind: Any) -> Codec:
    if kind is bytes:
        return _Untouched()
    if isinstance(kind, type) and _is_pydantic(kind):
        return _Pydantic(kind)
    try:
        return _Native(kind)
    except (TypeError, NameError, ValueError) as error:  # msgspec reads the annotations of the class here
        raise BodyError(f"{_words(kind)} cannot be decoded from JSON: {error}") from error


def _is_native(kind: type) -> bool:
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__")


def _is_pydantic(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    return issubclass(kind, pydantic.BaseModel) or hasattr(kind, "__pydantic_validator__")


def _words(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _pydantic_words(error: Any) -> str:
    """Put pydantic's list of problems on one line, without the values that were wrong."""
    found = error.errors(include_url=False, include_input=False) if hasattr(error, "errors") else ()
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in found) or str(error)
