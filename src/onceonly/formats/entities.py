"""Entities: users' classes <-> the state that a store keeps of them, and the names and keys they are kept under.

A state is JSON, read and written as a message's body of the same class would be. OutcomeUnknown fields are ignored when it is
read, and so are lost when it is next written.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from msgspec.inspect import type_info

from onceonly.formats.bodies import BodyError, is_anonymous, is_supported
from onceonly.model.wording import an

LONGEST_UNIT = 255
"""Bytes of an entity's name and key together: what every store takes, with room for what it puts before them."""

_NAME = "__onceonly_entity__"
_Class = TypeVar("_Class", bound=type)


def entity(name: str) -> Callable[[_Class], _Class]:
    """Set the name under which the entities of a class are stored. The default is the name of the class.

    Set it before you rename the class: entities are not found under another name. Subclasses do not inherit it. Raises
    ValueError for a name that is empty or contains "/".
    """
    if not name.strip() or "/" in name:
        raise ValueError('@entity needs a name without "/", such as @entity("bank.account.v1")')

    def name_it(cls: _Class) -> _Class:
        setattr(cls, _NAME, name)
        return cls

    return name_it


def entity_name(cls: type) -> str:
    """Return the name that the entities of a class are kept as."""
    return str(vars(cls).get(_NAME, cls.__name__))


def is_entity_class(kind: object) -> bool:
    """Return whether entities can be of this class: the same ones as messages, but those that are not classes of the user."""
    return isinstance(kind, type) and not is_anonymous(kind) and is_supported(kind)


def unit_of(name: str, key: object, partition: str = "") -> str:
    """Return the key of the unit that works on an entity, in a partition if it has one (`formats.partitions`).

    Raises BodyError when this can be no entity's key.
    """
    unit = f"{partition}{name}/{key_value(key)}"
    try:
        size = len(unit.encode())
    except UnicodeEncodeError as error:
        raise BodyError("its key is not valid UTF-8: it contains an unpaired surrogate") from error
    if size > LONGEST_UNIT:
        raise BodyError(f"its key is too long: it has {size} bytes with the name of the entity; the limit is {LONGEST_UNIT}")
    return unit


def key_value(key: object, what: str = "key") -> str | int:
    """Return the value of a key: a str, an int, a UUID or an enum of these. Raises BodyError, which calls it `what`."""
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        if not key or "\0" in key:
            raise BodyError(f"its {what} is empty" if not key else f"its {what} contains a NUL character")
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return key
    if isinstance(key, UUID):
        return str(key)
    found = "None" if key is None else an(type(key).__name__)
    raise BodyError(f"its {what} is {found}; it must be a str, an int, a UUID or an enum of these")


class ClassField(NamedTuple):
    """A field of a user's class: its names in Python and in JSON, and whether it has no default."""

    name: str
    wire: str
    required: bool


def fields_of(kind: type[Any]) -> Mapping[str, ClassField]:
    """Return the fields of a supported class by their names in Python."""
    pydantic = getattr(kind, "__pydantic_fields__", None)
    if pydantic is not None:
        return {name: ClassField(name, _alias(field) or name, field.is_required()) for name, field in pydantic.items()}
    found: Any = type_info(kind)
    return {field.name: ClassField(field.name, field.encode_name, field.required) for field in found.fields}


def blank(kind: type[Any], field: ClassField | None, key: object) -> bytes:
    """Return the state of an entity that has nothing but its key, in this field if there is one; nothing of it is judged."""
    if issubclass(kind, msgspec.Struct):  # it may be written as an array, or with a tag
        return msgspec.json.encode(kind(**{field.name: key} if field else {}))
    return msgspec.json.encode({field.wire: key} if field else {})


def _alias(field: Any) -> str | None:
    """Return the name that pydantic reads a field from, if it is a plain one."""
    alias = field.validation_alias or field.alias
    return alias if isinstance(alias, str) else None
