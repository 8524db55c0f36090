"""How one class is written and read. What a codec writes, it reads back equal, or it refuses to write it.

Each codec decides for itself how it makes sure. `bytes` pass untouched, and `dict` and `list` hold JSON's own types. For other
classes, see `lossless`: objects that surely read back equal are not read back, all others are, and compared field by field.

Why a body cannot be read is said on one line: the field, what is expected, and what is there. What is there is cut and
escaped. It is not shown where the name or the type of the field marks a secret.
"""

import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import msgspec

from onceonly.formats.body_differences import Difference, first_difference, untyped_difference, unwritable_field
from onceonly.formats.body_fields import is_attrs, is_native, is_pydantic, is_secret_field, unreadable, unsendable
from onceonly.formats.lossless import Test, never, surely_lossless, unreadable_field
from onceonly.model.escaping import escape

JSON = "application/json"
BINARY = "application/octet-stream"
CODECS = 1024
"""Classes whose codecs are kept."""
_encode_json = msgspec.json.Encoder().encode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


class BodyError(ValueError):
    """This body cannot be read as, or written from, this class; the message says why."""


class Codec(Protocol):
    """Both directions for one class, compiled once."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """Return the object. Raises BodyError."""

    def encode(self, value: Any) -> bytes:
        """Return bytes that read back equal. Raises BodyError, which names the field, for a value that would not."""


class BytesCodec:
    """Bytes are what they are."""

    content_type = BINARY

    def decode(self, body: bytes) -> Any:
        return body

    def encode(self, value: Any) -> bytes:
        return bytes(value)


class NativeCodec:
    """What msgspec reads and writes: dataclasses, structs, attrs classes, and JSON's own types."""

    content_type = JSON

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._read: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._write: Callable[[Any], bytes] = _encode_json
        self._is_lossless: Test = surely_lossless(kind) or never
        self._unsendable = unsendable(kind)
        self._is_untyped = kind in (dict, list, float)

    def decode(self, body: bytes) -> Any:
        try:
            return self._read(body)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors, and so is invalid UTF-8
            reason = native_reason(error, body, self._kind)
            raise BodyError(f"the body is not a valid {kind_name(self._kind)}: {reason}") from error

    def encode(self, value: Any) -> bytes:
        try:
            encoded = self._write(value)
            if self._is_lossless(value):
                return encoded
        except (TypeError, ValueError, RecursionError, AttributeError) as error:  # AttributeError: a field was deleted
            found = "" if isinstance(error, RecursionError) else unwritable_field(value, self._write)
            where = f"field {found}: " if found else ""
            raise _encode_error(self._kind, f"{where}{one_line(str(error))}") from error
        self._check(value, encoded)
        return encoded

    def _check(self, value: Any, encoded: bytes) -> None:
        if self._unsendable:
            raise _encode_error(self._kind, self._unsendable)
        try:
            difference = untyped_difference(value) if self._is_untyped else self._difference(value, encoded)
        except RecursionError as error:
            raise _encode_error(self._kind, str(error)) from error
        if difference is not None:
            raise _encode_error(self._kind, str(difference))

    def _difference(self, value: Any, encoded: bytes) -> Difference | None:
        return _difference(value, encoded, self.decode, self._kind)


class ListCodec(NativeCodec):
    """Lists: of JSON's own types, or of objects of one class, of which `item` is None if it is not declared.

    Each object is read and written as a body of its own would be.
    """

    def __init__(self, kind: Any, item: Any = None) -> None:
        super().__init__(kind if item is None else list)
        self._kind = kind
        self._item = item

    def decode(self, body: bytes) -> Any:
        if self._item is None:
            return super().decode(body)
        codec = codec_for(self._item)
        try:
            items = _read_items(body)
        except (ValueError, RecursionError) as error:
            raise BodyError(f"the body is not a valid {kind_name(self._kind)}: {one_line(str(error))}") from error
        return [_of_item(index, codec.decode, bytes(each)) for index, each in enumerate(items)]

    def encode(self, value: Any) -> bytes:
        item = self._item if self._item is not None or not value else value[0].__class__
        if not _is_users(item):
            return super().encode(value)
        codec = codec_for(item)
        for index, each in enumerate(value):
            if each.__class__ is not item:
                found = kind_name(each.__class__)
                raise BodyError(
                    f"item {index} is of class {found}: a list that is a body has objects of one class, {item.__name__}"
                )
        return b"[" + b",".join(_of_item(index, codec.encode, each) for index, each in enumerate(value)) + b"]"


def _of_item(index: int, convert: Callable[[Any], Any], item: Any) -> Any:
    try:
        return convert(item)
    except BodyError as error:
        raise BodyError(f"item {index}: {error}") from error


def _is_users(kind: Any) -> bool:
    return isinstance(kind, type) and (is_native(kind) or is_pydantic(kind))


def _is_read_alone(kind: Any) -> bool:
    """Return whether only a codec of its own reads objects of a class as they are, and not that of what contains them."""
    return isinstance(kind, type) and (is_attrs(kind) or is_pydantic(kind))


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
        try:
            return self._adapter.validate_json(body)
        except ValueError as error:
            raise BodyError(f"the body is not a valid {kind_name(self._kind)}: {pydantic_reason(error, self._kind)}") from error

    def encode(self, value: Any) -> bytes:
        if self._unsendable:
            raise _encode_error(self._kind, self._unsendable)
        try:
            encoded = self._dump(value, by_alias=True, warnings=False)
            if self._is_surely_kept(value):
                return encoded
            difference = _difference(value, encoded, self.decode, self._kind)
        except BodyError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise _encode_error(self._kind, one_line(str(error))) from error
        if difference is not None:
            raise _encode_error(self._kind, str(difference))
        return encoded

    def _is_surely_kept(self, value: Any) -> bool:
        try:
            return self._is_lossless(value)
        except AttributeError:  # made without a field, by `model_construct`
            return False


def kind_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _difference(value: Any, encoded: bytes, decode: Callable[[bytes], Any], kind: Any) -> Difference | None:
    try:
        read = decode(encoded)
    except BodyError as error:
        return Difference("", f"its receivers could not read it: {error}")
    except Exception as error:  # noqa: BLE001 - code of the user's that runs when an object is made
        return Difference("", f"its receivers could not read it: {type(error).__name__}: {one_line(str(error))[:200]}")
    return first_difference(value, read, kind if get_origin(kind) is not None else None)


def _encode_error(kind: Any, reason: str) -> BodyError:
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
        alias = getattr(value, "__orig_class__", None)
        if alias is None or get_origin(alias) is not self._kind:
            return super().encode(value)
        return codec_for(alias).encode(value)


@lru_cache(CODECS)
def attrs_codec(kind: Any) -> AttrsCodec:
    return AttrsCodec(kind)


def codec_for(kind: Any) -> Codec:
    """Return the codec of a supported class. Raises BodyError when a field of it cannot be served."""
    return _compiled(kind)


@lru_cache(CODECS)
def _compiled(kind: Any) -> Codec:
    if kind is bytes:
        return BytesCodec()
    if kind is list:
        return ListCodec(list)
    if get_origin(kind) is list and _is_read_alone(item := get_args(kind)[0]):
        codec_for(item)  # what is wrong with it is said now
        return ListCodec(kind, item)
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


LONGEST_SHOWN = 60
"""Characters of a value."""
MOST_PROBLEMS = 3
"""Problems that one reason lists."""

_AT = r"(?s)(?P<problem>.*?) - at `(?:key in )?\$?(?P<path>[^`]*)`$"
_STEP = r"\.([^.\[]+)|\[(\d+|\.\.\.)\]"
_NOTHING = object()


def native_reason(error: Exception, body: bytes, kind: Any) -> str:
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return one_line(text)
    found = re.match(_AT, text)
    if found is None:
        return one_line(text)
    path = [_step(*step) for step in re.findall(_STEP, found["path"])]
    value = _follow(body, path)
    return f"{one_line(text)}{_found(value, path, kind)}"


def pydantic_reason(error: Any, kind: Any) -> str:
    """Return the reason of a validation error of pydantic's: at most three problems."""
    if not hasattr(error, "errors"):
        return one_line(str(error))
    try:
        problems = error.errors(include_url=False, include_context=False)
    except Exception:  # noqa: BLE001 - an error that a validator of the user's made
        return type(error).__name__
    lines = [_pydantic_problem(each, kind) for each in problems[:MOST_PROBLEMS]]
    if len(problems) > MOST_PROBLEMS:
        lines.append(f"and {len(problems) - MOST_PROBLEMS} more")
    return "; ".join(lines)


def one_line(text: str) -> str:
    """Escape what would break a line or move a cursor."""
    return escape(text, multiline=False)


def _pydantic_problem(problem: Any, kind: Any) -> str:
    path = list(problem["loc"])
    text = f"{'.'.join(map(str, path)) or 'body'}: {problem['msg']}"
    value = _NOTHING if problem["type"] in ("missing", "json_invalid") else problem.get("input", _NOTHING)
    return f"{one_line(text)}{_found(value, path, kind)}"


def _step(name: str, index: str) -> str | int:
    return name or (int(index) if index.isdigit() else index)


def _follow(body: bytes, path: Iterable[str | int]) -> Any:
    """Return the value at a path of a document, or `_NOTHING` where the path is not exact."""
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return _NOTHING
    for step in path:
        try:
            value = value[step]
        except (LookupError, TypeError):
            return _NOTHING
    return value


def _found(value: Any, path: Iterable[object], kind: Any) -> str:
    if value is _NOTHING or isinstance(value, dict | list) or is_secret_field(kind, path):
        return ""
    text = one_line(ascii(value)).replace("`", "'")
    return f"; found `{text[:LONGEST_SHOWN]}{'...' if len(text) > LONGEST_SHOWN else ''}`"
