"""The entities of one transaction: asked for by class and key, changed in place, and saved with all else."""

from typing import Any, TypeVar, cast

from onceonly.algorithms.transaction import before_commit
from onceonly.endpoint.entities import EntityPlan, EntityWork
from onceonly.endpoint.signatures import words
from onceonly.formats.bodies import SUPPORTED, BodyError, check_written, codec_for
from onceonly.formats.entities import entity_name, fields_of, is_entity_class, unit_of
from onceonly.model.entities import Deleted, Entities
from onceonly.model.errors import CommitRefused, HandlerFailed, SetupError, TransactionMisused
from onceonly.model.wording import an
from onceonly.ports.transactions import OpenTransaction

_Entity = TypeVar("_Entity")


class HeldEntities:
    """What a transaction works on, by the entities' keys."""

    def __init__(self, opened: OpenTransaction) -> None:
        self._opened = opened
        self._works: dict[str, EntityWork] = {}
        self._deleted: set[str] = set()

    async def open(self, kind: type[_Entity], key: object, fresh: _Entity | None) -> _Entity:
        """Load an entity, and give it: the same object each time. Raises TransactionMisused, SetupError, CommitRefused."""
        plan = _plan(kind)
        try:
            unit = unit_of(plan.name, key)
        except BodyError as error:
            raise TransactionMisused(f"tx.entity({words(kind)}, {key!r}): {error}") from error
        if unit not in self._works:
            with before_commit():
                await self._opened.load(unit)
            self._works[unit] = self._begin(plan, unit, key, fresh)
        entity = self._works[unit].entity
        if type(entity) is not kind:
            raise TransactionMisused(
                f"{unit!r} is already loaded as {an(type(entity).__name__)} in this transaction, not as {an(words(kind))}"
            )
        return entity

    def delete(self, entity: object) -> None:
        """Have an entity deleted by the commit. Raises TransactionMisused for what is none of this transaction."""
        unit = next((unit for unit, work in self._works.items() if work.entity is entity), None)
        if unit is None:
            raise TransactionMisused(
                f"tx.delete needs an object that tx.entity(...) returned; this {words(type(entity))} is not one"
            )
        self._deleted.add(unit)

    def save(self) -> None:
        """Write what was made of them. Raises CommitRefused for what could not be read again."""
        for unit, work in self._works.items():
            try:
                work.save(Deleted() if unit in self._deleted else None)
            except HandlerFailed as error:
                raise CommitRefused(f"the transaction cannot be committed: {error.failure.reason}") from error

    def _begin(self, plan: EntityPlan, unit: str, key: object, fresh: object) -> EntityWork:
        try:
            entities = cast("Entities", self._opened.resources.get(Entities))
        except LookupError as error:
            raise SetupError(f"tx.entity: {error}") from error
        if fresh is not None and type(fresh) is not plan.kind:
            raise TransactionMisused(f"fresh= must be {an(words(plan.kind))}, not {an(words(type(fresh)))}")
        try:
            if fresh is not None and entities.read(unit) is None:
                return EntityWork(plan, entities, unit, fresh, None, None)
            return plan.begin(unit, entities, lambda: key)
        except HandlerFailed as error:
            hint = ". Pass fresh= with its initial value" if entities.read(unit) is None else ""
            raise CommitRefused(f"{error.failure.reason}{hint}") from error


def _plan(kind: type[Any]) -> EntityPlan:
    """Plan how to read and write a class. A fresh one has its key in the one field that has no default."""
    if not is_entity_class(kind):
        kinds = SUPPORTED.removesuffix(", dict, list or bytes")
        raise TransactionMisused(f"tx.entity takes {kinds}, not {words(kind)}")
    try:
        check_written(kind)
        codec, fields = codec_for(kind), fields_of(kind)
    except BodyError as error:
        raise TransactionMisused(f"tx.entity({words(kind)}): {error}") from error
    required = [field for field in fields.values() if field.required]
    field = required[0] if len(required) == 1 else None
    return EntityPlan(kind, entity_name(kind), codec, codec, "", field, is_optional=False)
