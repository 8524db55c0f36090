"""Handlers of entities: which entity a message is about, the state it is given to its handler from, and what becomes of it.

place   when a delivery is read: decode the body, take the key from it
open    when its handler runs: the state as earlier handlers of the unit left it, or a fresh entity, or None
save    when its handler is done: what it changed or returned, if that can be read again
"""

from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from onceonly.algorithms.transaction import before_commit
from onceonly.endpoint.failures import failed
from onceonly.endpoint.partitions import FieldRule, PartitionPlan, field_problem, placed, value_of
from onceonly.endpoint.signatures import Parameter, words
from onceonly.formats.bodies import CLASSES, BodyError, Codec, check_written, codec_for
from onceonly.formats.entities import (
    LONGEST_UNIT,
    ClassField,
    blank,
    entity_name,
    fields_of,
    is_entity_class,
    unit_of,
)
from onceonly.model.entities import Deleted, Entities
from onceonly.model.errors import (
    USERS_ERRORS,
    CommitRefused,
    HandlerFailed,
    SetupError,
    TransactionMisused,
    text_of,
)
from onceonly.model.message import FailureKind, Message, Unreadable
from onceonly.model.wording import an
from onceonly.ports.store import Resources
from onceonly.ports.transactions import OpenTransaction

KeyRule = FieldRule
"""The field of the message that holds its entity's key, or what tells the key from the message."""

_Entity = TypeVar("_Entity")


class EntityPlan(NamedTuple):
    """How one handler works on entities. `field` is where a fresh one has its key, if it has such a field."""

    kind: type[Any]
    name: str
    codec: Codec
    body: Codec
    rule: KeyRule
    field: ClassField | None
    is_optional: bool
    """Whether the handler receives None while there is none yet."""
    partition: PartitionPlan | None = None
    """Which partition the entity is in, where the handler has said so."""

    def place(self, message: Message) -> Message | Unreadable:
        """Return the message with its unit, and its body next to it, or why there is none."""
        return placed(message, self.body, self.unit_for, self.name)

    def unit_for(self, body: Any) -> str:
        """Return the unit that works on the entity of this body. Raises BodyError, and what a function of the user's raises."""
        partition = "" if self.partition is None else self.partition.of(body)
        return unit_of(self.name, value_of(self.rule, body), partition)

    def open(self, message: Message, body: object, resources: Resources) -> "EntityWork":
        """Return the entity for the handler. Raises HandlerFailed when there is a state that is none of this class."""
        return self.begin(message.unit, cast("Entities", resources.get(Entities)), lambda: value_of(self.rule, body))

    def begin(self, unit: str, entities: Entities, key: Callable[[], object]) -> "EntityWork":
        """Begin to work on an entity that was loaded; `key` tells its key to a fresh one. Raises HandlerFailed."""
        state = entities.read(unit)
        if state is None:
            entity = None if self.is_optional else self._fresh(unit, key)
        else:
            entity = self._decoded(state, FailureKind.EXCEPTION, f"the stored state of {unit} cannot be read")
        before = None if entity is None else self.encoded(entity)
        return EntityWork(self, entities, unit, entity, before if state is not None else None, before)

    def encoded(self, entity: object) -> bytes:
        try:
            return self.codec.encode(entity)
        except BodyError as error:
            raise failed(FailureKind.EXCEPTION, str(error)) from error

    def check(self, state: bytes) -> None:
        """Make sure that this state can be read again: else it would fail every later message. Raises HandlerFailed."""
        self._decoded(
            state, FailureKind.EXCEPTION, f"the {self.name} that the handler returned cannot be encoded and read again"
        )

    def _fresh(self, unit: str, key: Callable[[], object]) -> Any:
        state = blank(self.kind, self.field, key() if self.field else None)
        return self._decoded(state, FailureKind.REJECTED, f"cannot create a new {self.name} for {unit}")

    def _decoded(self, state: bytes, kind: FailureKind, reason: str) -> Any:
        try:
            return self.codec.decode(state)
        except USERS_ERRORS as error:  # a BodyError, or whatever a validator of the user's raises
            raise failed(kind, f"{reason}: {text_of(error)}") from error


class EntityWork(NamedTuple):
    """One entity while one handler works on it.

    `before` is what it was given, written down; `kept` is the same, or None while the store has no such entity.
    """

    plan: EntityPlan
    entities: Entities
    unit: str
    entity: Any
    kept: bytes | None
    before: bytes | None

    def save(self, left: object) -> None:
        """Write what the handler made of it, or returned. Raises HandlerFailed when that is nothing to keep."""
        if type(left) is Deleted:
            self.entities.write(self.unit, None)
            return
        state = self._state(left)
        if state is not None and state != self.kept:
            self.plan.check(state)
            self.entities.write(self.unit, state)

    def _state(self, left: object) -> bytes | None:
        """Return the state to store. None: unchanged."""
        if type(left) is self.plan.kind:
            return self.plan.encoded(left)
        if left is not None:
            raise self._no_entity(left)
        state = None if self.entity is None else self.plan.encoded(self.entity)
        return None if state == self.before else state  # a fresh one that was only looked at is not kept

    def _no_entity(self, left: object) -> HandlerFailed:
        what = "the class Deleted" if left is Deleted else an(type(left).__name__)
        may = f"a handler of {self.plan.name} must return None, {words(self.plan.kind)}(...) or Deleted()"
        return failed(FailureKind.EXCEPTION, f"the handler returned {what}; {may}")


class EntityRule(NamedTuple):
    """What was said of a handler's entities where it was registered; None for what was not."""

    kind: Any
    key: Any


def plan_entity(
    rule: EntityRule,
    message: Any,
    parameters: Sequence[Parameter],
    *,
    partition: PartitionPlan | None = None,
    is_offered: bool,
    wrong: list[str],
) -> EntityPlan | None:
    """Plan how a handler of this class of message works on entities; adds what is wrong."""
    found = [each for each in parameters if takes(each.annotation, rule.kind)]
    problems = list(_rule_problems(rule))
    if not is_offered:
        problems.append(
            "entity= needs a store for entities, and this one stores none: use a SQL database or a document service"
        )
    if problems:
        wrong += problems
        return None
    kind = rule.kind
    try:
        check_written(kind)
        codec, fields = codec_for(kind), fields_of(kind)
    except BodyError as error:
        wrong.append(f"entity={words(kind)}: {error}")
        return None
    if problem := field_problem(rule.key, message):
        wrong.append(problem)
        return None
    if len(found) != 1:
        wrong.append(f"one parameter takes the entity: annotate it with {words(kind)}, or {words(kind)} | None")
    field = fields.get(rule.key) if isinstance(rule.key, str) else None
    is_optional = bool(found) and found[0].annotation is not kind
    if found and not is_optional and (missing := [each.name for each in fields.values() if each.required and each != field]):
        wrong.append(_no_fresh(kind, found[0].name, missing))
    return EntityPlan(kind, entity_name(kind), codec, codec_for(message), rule.key, field, is_optional, partition)


def takes(annotation: Any, kind: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return set(get_args(annotation)) == {kind, NoneType}
    return bool(annotation == kind)


def _rule_problems(rule: EntityRule) -> Sequence[str]:
    if rule.kind is None or rule.key is None:
        return ('entity= and key= must be used together: @handler(entity=Account, key="account_id")',)
    if not is_entity_class(rule.kind):
        return (f"entity= must be {CLASSES}, not {words(rule.kind)}",)
    if not isinstance(rule.key, str) and not callable(rule.key):
        return (f"key= must be the name of a field of the message, or a function of it, not {rule.key!r}",)
    name = entity_name(rule.kind)
    if len(name.encode()) >= LONGEST_UNIT // 2:
        return (f"the entity name {name[:40]!r}... is too long; the limit is {LONGEST_UNIT // 2} bytes",)
    return ()


def _no_fresh(kind: Any, parameter: str, missing: Sequence[str]) -> str:
    return (
        f"{parameter}: a new {words(kind)} cannot be created, because {', '.join(missing)} has no "
        f"default and is not the key. Add a default, or annotate with {words(kind)} | None"
    )


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
        """Delete an entity with the commit. Raises TransactionMisused for what is none of this transaction."""
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
        raise TransactionMisused(f"tx.entity takes {CLASSES}, not {words(kind)}")
    try:
        check_written(kind)
        codec, fields = codec_for(kind), fields_of(kind)
    except BodyError as error:
        raise TransactionMisused(f"tx.entity({words(kind)}): {error}") from error
    required = [field for field in fields.values() if field.required]
    field = required[0] if len(required) == 1 else None
    return EntityPlan(kind, entity_name(kind), codec, codec, "", field, is_optional=False)
