"""How one class is written and read. What a codec writes, it reads back equal, or it refuses to write it.

Each codec decides for itself how it makes sure. `bytes` pass untouched, and `dict` and `list` hold JSON's own types. For other
classes, see `lossless`: objects that surely read back equal are not read back, all others are, and compared field by field.
"""

import sys
from collections.abc import Callable
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from onceonly.formats.body_differences import Difference, first_difference, untyped_difference, unwritable_field
from onceonly.formats.body_fields import is_attrs, is_pydantic, unreadable, unsendable
from onceonly.formats.body_reasons import native_reason, one_line, pydantic_reason
from onceonly.formats.lossless import Test, never, surely_lossless, unreadable_field

JSON = "application/json"
BINARY = "application/octet-stream"
CODECS = 1024
"""Classes whose codecs are kept."""
_encode_json = msgspec.json.Encoder().encode


class BodyError(ValueError):
    """This body cannot be read as, or written from, this class; the message says why."""


class Codec(Protocol):
    """Both directions for one class, compiled once."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """Give the object. Raises BodyError."""

    def encode(self, value: Any) -> bytes:
        """Give bytes that read back equal. Raises BodyError, which names the field, for a value that would not."""


class BytesCodec:
    """Bytes are what they are."""

    content_type = BINARY

    def decode(self, body: bytes) -> Any:
        """Give the body."""
        return body

    def encode(self, value: Any) -> bytes:
        """Give the body."""
        return bytes(value)


class NativeCodec:
    """What msgspec reads and writes: dataclasses, structs, attrs classes, `dict` and `list`."""

    content_type = JSON

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._write: Callable[[Any], bytes] = _encode_json
        self._is_lossless: Test = surely_lossless(kind) or never
        self._unsendable = unsendable(kind)
        self._is_untyped = kind in (dict, list)

    def decode(self, body: bytes) -> Any:
        """Give the object. Raises BodyError."""
        try:
            return self._read(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so is invalid UTF-8
            reason = native_reason(error, body, self._kind)
            raise BodyError(f"the body is not a valid {kind_name(self._kind)}: {reason}") from error

    def encode(self, value: Any) -> bytes:
        """Give the bytes. Raises BodyError."""
        try:
            encoded = self._write(value)
            if self._is_lossless(value):
                return encoded
        except (TypeError, ValueError, RecursionError, AttributeError) as error:  # AttributeError: a field was deleted
            found = "" if isinstance(error, RecursionError) else unwritable_field(value, self._write)
            where = f"field {found}: " if found else ""
            raise _not_written(self._kind, f"{where}{one_line(str(error))}") from error
        self._check(value, encoded)
        return encoded

    def _check(self, value: Any, encoded: bytes) -> None:
        if self._unsendable:
            raise _not_written(self._kind, self._unsendable)
        try:
            difference = untyped_difference(value) if self._is_untyped else self._difference(value, encoded)
        except RecursionError as error:
            raise _not_written(self._kind, str(error)) from error
        if difference is not None:
            raise _not_written(self._kind, str(difference))

    def _difference(self, value: Any, encoded: bytes) -> Difference | None:
        return _difference(value, encoded, self.decode, self._kind)


class AttrsCodec(NativeCodec):
    """Attrs classes, which are read by calling the class, so that converters, validators and private names work.

    Fields travel under their names in the class, `init=False` fields too; the receiver's class computes these.
    """

    def __init__(self, kind: Any) -> None:
        self._fields = tuple(kind.__attrs_attrs__)
        self._mirror = _mirror(kind)
        self._arguments = tuple((each.name, each.alias) for each in self._fields if each.init)
        super().__init__(self._mirror)
        self._kind = kind
        self._read = self._call
        if any(each.name.startswith("_") for each in self._fields):
            self._write = self._with_private
        self._is_lossless = surely_lossless(kind) or never
        self._decoder = msgspec.json.Decoder(self._mirror, dec_hook=_nested)

    def build(self, found: Any) -> Any:
        """Make the object from what was read of its fields."""
        given = ((alias, getattr(found, name)) for name, alias in self._arguments)
        return self._kind(**{alias: value for alias, value in given if value is not msgspec.UNSET})

    def convert(self, found: Any) -> Any:
        """Make the object from JSON's own types. Raises ValueError."""
        return self.build(msgspec.convert(found, self._mirror, str_keys=True, dec_hook=_nested))

    def _call(self, body: bytes) -> Any:
        try:
            return self.build(self._decoder.decode(body))
        except (TypeError, NotImplementedError) as error:
            raise ValueError(str(error)) from error

    def _with_private(self, value: Any) -> bytes:
        if value.__class__ is not self._kind:  # a part of one, when the part that cannot be encoded is searched
            return _encode_json(value)
        return _encode_json({each.name: getattr(value, each.name) for each in self._fields})


class PydanticCodec:
    """Pydantic models and dataclasses. A model that only declares fields need not be read back."""

    content_type = JSON

    def __init__(self, kind: type, adapter: Any) -> None:
        self._kind = kind
        self._adapter = adapter
        self._dump: Callable[..., bytes] = adapter.dump_json
        self._is_lossless: Test = surely_lossless(kind) or never
        self._unsendable = unsendable(kind)

    def decode(self, body: bytes) -> Any:
        """Give the object. Raises BodyError."""
        try:
            return self._adapter.validate_json(body)
        except ValueError as error:
            raise BodyError(f"the body is not a valid {kind_name(self._kind)}: {pydantic_reason(error, self._kind)}") from error

    def encode(self, value: Any) -> bytes:
        """Give the bytes. Raises BodyError."""
        if self._unsendable:
            raise _not_written(self._kind, self._unsendable)
        try:
            encoded = self._dump(value, by_alias=True, warnings=False)
            if self._is_surely_kept(value):
                return encoded
            difference = _difference(value, encoded, self.decode, self._kind)
        except BodyError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise _not_written(self._kind, one_line(str(error))) from error
        if difference is not None:
            raise _not_written(self._kind, str(difference))
        return encoded

    def _is_surely_kept(self, value: Any) -> bool:
        try:
            return self._is_lossless(value)
        except AttributeError:  # made without a field, by `model_construct`
            return False


def kind_name(kind: Any) -> str:
    """Give the name of a class in an error."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _difference(value: Any, encoded: bytes, decode: Callable[[bytes], Any], kind: Any) -> Difference | None:
    try:
        read = decode(encoded)
    except BodyError as error:
        return Difference("", f"its receivers could not read it: {error}")
    except Exception as error:  # noqa: BLE001 - code of the user's that runs when an object is made
        return Difference("", f"its receivers could not read it: {type(error).__name__}: {one_line(str(error))[:200]}")
    return first_difference(value, read, kind if get_origin(kind) is not None else None)


def _not_written(kind: Any, reason: str) -> BodyError:
    return BodyError(f"{kind_name(kind)} cannot be encoded as JSON: {reason}")


def _mirror(kind: Any) -> Any:
    """Make a struct with the fields of an attrs class. Attrs classes inside are left to `_nested`."""
    hints = get_type_hints(kind, include_extras=True)
    nothing = sys.modules["attr"].NOTHING
    fields: list[Any] = []
    for each in kind.__attrs_attrs__:
        declared = _mirrored(hints.get(each.name, Any))
        if each.init and each.default is nothing:
            fields.append((each.name, declared))
        elif each.init:
            fields.append((each.name, Union[declared, msgspec.UnsetType], msgspec.UNSET))  # noqa: UP007 - of types known now
    return msgspec.defstruct(kind.__name__, fields, kw_only=True, module=kind.__module__)


class _StandsFor(type):
    """The class of placeholders: the objects of the attrs class count as theirs."""

    kind: Any

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.kind)


class _Placeholder(metaclass=_StandsFor):
    """Stands for an attrs class in the type of a field: msgspec asks `_nested` to make it."""


@lru_cache(CODECS)
def _placeholder(kind: Any) -> Any:
    return _StandsFor(f"_{kind.__name__}", (_Placeholder,), {"kind": kind})


def _mirrored(declared: Any) -> Any:
    """Put placeholders in the place of attrs classes."""
    if isinstance(declared, type) and is_attrs(declared) and not get_args(declared):
        return _placeholder(declared)
    types, origin = get_args(declared), get_origin(declared)
    if origin is Literal or origin is Annotated:
        return declared
    changed = tuple(_mirrored(each) for each in types)
    if all(new is old for new, old in zip(changed, types, strict=True)):
        return declared
    return Union[changed] if origin in (Union, UnionType) else origin[changed]  # noqa: UP007 - see above


def _nested(kind: Any, found: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, _Placeholder):
        return attrs_codec(kind.kind).convert(found)
    raise NotImplementedError(f"objects of type {kind_name(kind)} are not supported")


class GenericCodec(NativeCodec):
    """A generic class: an object that was made as `Envelope[Order](...)` is written as this, others as the bare class."""

    def encode(self, value: Any) -> bytes:
        """Give the bytes. Raises BodyError."""
        alias = getattr(value, "__orig_class__", None)
        if alias is None or get_origin(alias) is not self._kind:
            return super().encode(value)
        return codec_for(alias).encode(value)


@lru_cache(CODECS)
def attrs_codec(kind: Any) -> AttrsCodec:
    """Give the codec of an attrs class."""
    return AttrsCodec(kind)


def codec_for(kind: Any) -> Codec:
    """Give the codec of a supported class. Raises BodyError when a field of it cannot be served."""
    return _compiled(kind)


@lru_cache(CODECS)
def _compiled(kind: Any) -> Codec:
    if kind is bytes:
        return BytesCodec()
    if problem := unreadable(get_origin(kind) or kind) or unreadable_field(kind):
        raise BodyError(problem)
    try:
        if isinstance(kind, type) and is_pydantic(kind):
            return PydanticCodec(kind, sys.modules["pydantic"].TypeAdapter(kind))
        if isinstance(kind, type) and is_attrs(kind) and not getattr(kind, "__parameters__", ()):
            return attrs_codec(kind)
        return GenericCodec(kind) if getattr(kind, "__parameters__", ()) and isinstance(kind, type) else NativeCodec(kind)
    except BodyError:
        raise
    except Exception as error:  # annotations are read here, which are code of the user's
        reason = str(error) or type(error).__name__
        raise BodyError(f"{kind_name(kind)} cannot be decoded from JSON: {one_line(reason)}") from error
