"""The fields of users' objects, and what their classes show before any object exists."""

import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

import msgspec

UNSET_FIELD = object()
"""The value of a field that an object does not have."""
_SECRET = ("password", "passwd", "passphrase", "secret", "token", "credential", "authorization", "apikey", "privatekey")


def is_native(kind: type) -> bool:
    """Return whether msgspec reads and writes this class. Those of attrs are read by calling the class."""
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_attrs(kind)


def is_attrs(kind: type) -> bool:
    return hasattr(kind, "__attrs_attrs__")


def is_pydantic(kind: type) -> bool:
    """Return whether pydantic made this class. It is never imported here: without it, no class can be one of its own."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    return issubclass(kind, pydantic.BaseModel) or hasattr(kind, "__pydantic_validator__")


_HARMLESS = frozenset({"title", "frozen", "from_attributes", "json_schema_extra", "use_attribute_docstrings", "extra"})
"""Settings of a model that change nothing about what is written and read, but for `extra="allow"`."""


def is_plain_model(kind: Any) -> bool:
    """Return whether a class is a pydantic model that only declares fields: no code of the user's runs when it is read."""
    base = sys.modules["pydantic"].BaseModel
    if not (isinstance(kind, type) and issubclass(kind, base)) or is_mapped(kind):
        return False
    model: Any = kind
    config = model.model_config
    decorators = model.__pydantic_decorators__
    if not _HARMLESS.issuperset(config) or config.get("extra") == "allow" or model.__pydantic_custom_init__:
        return False
    if any(getattr(decorators, each.name) for each in fields(decorators)) or model.__pydantic_root_model__:
        return False
    hooks = ("model_post_init", "__get_pydantic_core_schema__", "__getattribute__", "__setattr__", "__new__")
    if any(inspect.getattr_static(kind, each, None) is not inspect.getattr_static(base, each, None) for each in hooks):
        return False
    return all(
        not (each.alias or each.validation_alias or each.serialization_alias or each.exclude or each.metadata)
        and each.discriminator is None
        and getattr(each, "exclude_if", None) is None
        for each in model.__pydantic_fields__.values()
    )


def is_mapped(kind: type) -> bool:
    """Return whether SQLAlchemy maps this class to a table. SQLModel's tables are such classes."""
    return hasattr(kind, "_sa_class_manager")


def field_values(value: Any) -> Iterable[tuple[str, Any]] | None:
    """Return the fields of an object with their values; None if it has no fields. Additional fields of pydantic's count."""
    kind = value.__class__
    models: Mapping[str, Any] | None = getattr(kind, "__pydantic_fields__", None)
    if models is not None and not is_dataclass(kind):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return [*((name, getattr(value, name, UNSET_FIELD)) for name in models), *extra.items()]
    names: Iterable[str]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif is_dataclass(kind):
        names = [each.name for each in fields(value)]
    elif is_attrs(kind):
        names = [each.name for each in kind.__attrs_attrs__]
    else:
        return None
    return [(name, getattr(value, name, UNSET_FIELD)) for name in names]


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name may hold a secret, so that its value is not shown."""
    plain = name.lower().replace("_", "").replace("-", "")
    return any(word in plain for word in _SECRET)


def unsendable(kind: Any) -> str:
    """Return why no object of a class can be sent, as far as the class shows, or "". Other losses show only in a value."""
    return next(iter(_problems(kind, set())), "")


def unreadable(kind: Any) -> str:
    """Return why no object of a class can be made from a body, or ""."""
    if isinstance(kind, type) and is_mapped(kind):
        return (
            f"{kind.__name__} is mapped to a table by SQLAlchemy, so its fields belong to a session and a row. "
            "Use a dataclass or a model with the data of the message"
        )
    return ""


def _problems(kind: Any, seen: set[Any]) -> Iterable[str]:
    if not isinstance(kind, type) or kind in seen:
        return
    seen.add(kind)
    if problem := unreadable(kind):
        yield problem
    if not is_pydantic(kind):
        return
    models: Any = kind
    yield from _problems_of_model(models)
    for field in models.__pydantic_fields__.values():
        for part in _parts(field.annotation):
            yield from _problems(part, seen)


def _problems_of_model(kind: Any) -> Iterable[str]:
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    serialized = {name for each in kind.__pydantic_decorators__.field_serializers.values() for name in each.info.fields}
    for name, field in kind.__pydantic_fields__.items():
        where = f"field {name} of {kind.__name__}"
        if field.exclude:
            yield f"{where} has exclude=True, so it would not be sent. Send a model without the field"
        has_serializer = (
            name in serialized or "*" in serialized or any("Serializer" in type(each).__name__ for each in field.metadata)
        )
        if not has_serializer and any(_is_secret(part) for part in _parts(field.annotation)):
            yield f"{where} is a secret, which would be sent as asterisks. Send a reference to it, or add a field_serializer"
        wire = field.serialization_alias or name
        if not _reads(field, name, wire, config):
            yield (
                f"{where} is written as {wire!r} and not read under this name: use alias= in the place of "
                "validation_alias= or serialization_alias="
            )
    if config.get("extra") == "forbid" and (computed := list(kind.__pydantic_decorators__.computed_fields)):
        yield f"computed field {computed[0]} of {kind.__name__} is sent, and extra='forbid' refuses it at the receiver"


def _reads(field: Any, name: str, wire: str, config: Mapping[str, Any]) -> bool:
    alias = field.validation_alias
    if alias is None:
        return bool(wire == name)
    if wire == name and (config.get("populate_by_name") or config.get("validate_by_name")):
        return True
    if config.get("validate_by_alias") is False:
        return bool(wire == name)
    choices = getattr(alias, "choices", (alias,))
    return any(each == wire or getattr(each, "path", None) == [wire] for each in choices)


def _is_secret(part: Any) -> bool:
    return isinstance(part, type) and any(
        each.__module__ == "pydantic.types" and each.__name__ in ("SecretStr", "SecretBytes", "Secret", "_SecretBase")
        for each in inspect.getmro(part)
    )


def is_secret_field(kind: Any, path: Iterable[object]) -> bool:
    """Return whether a path of names leads to, or through, a field that is a secret by its name or by its type."""
    for name in path:
        if not isinstance(name, str):
            continue
        if is_secret_name(name):
            return True
        models = getattr(kind, "__pydantic_fields__", None) or {}
        field = models.get(name) or next((each for each in models.values() if each.alias == name), None)
        parts = [] if field is None else list(_parts(getattr(field, "annotation", None)))
        if any(_is_secret(part) for part in parts):
            return True
        kind = next((part for part in parts if hasattr(part, "__pydantic_fields__")), None)
    return False


def _parts(annotation: Any) -> Iterable[Any]:
    yield annotation
    for each in get_args(annotation):
        yield from _parts(each)
