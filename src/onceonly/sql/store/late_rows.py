"""Objects that handlers left new in their sessions, and that are inserted together with those of other handlers.

A flush for each handler would cost a round trip each. Rows may wait as long as nothing can see the difference:

* The values are taken when the handler has ended. What is changed afterwards is not written.
* No code of the user's runs when they are written: no listener, no function of a default, no type of the user's. Where there
  is one, the session is flushed when its handler ends.
* The objects themselves are gone. An object that something still refers to is flushed when its handler ends.
* They are written before the next statement of any handler, in the order in which they were added.

A row that the database refuses ends a unit, and it has no name on it: the messages run again, each in its turn. So after such a
failure no rows wait in isolated units for a while; see `RecentLateRows`.
"""

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Connection, Insert, Table, insert
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.types import PickleType, TypeEngine

from onceonly.sql.guard import users_class

_PLAIN = frozenset(
    {
        *(str, int, float, bool, bytes, type(None), decimal.Decimal, uuid.UUID),
        *(dt.date, dt.datetime, dt.time, dt.timedelta),
    }
)
"""Classes of values that nothing can change."""
_EVENTS = (
    *("after_begin", "before_flush", "after_flush", "after_flush_postexec", "before_commit", "after_commit"),
    *("before_attach", "after_attach", "transient_to_pending"),
    *("pending_to_persistent", "pending_to_transient", "persistent_to_detached"),
)
_listeners = attrgetter(*_EVENTS)
Row: TypeAlias = dict[str, Any]
UNITS, LARGEST_UNIT = 10, 100
"""Isolated units whose rows do not wait after a failure, and how many messages are counted for each."""


class _CannotWait(Exception):
    """A value, an object or a listener for which the session must be flushed now."""


class _Plan(NamedTuple):
    """How objects of one class become rows."""

    table: Table
    insert: Insert
    numbered: Insert | None
    """The same, and it returns the key that the database numbers. None for a table that refers to itself.

    One statement for all rows accepts a row before the one that it refers to. A flush does not.
    """
    columns: Mapping[str, tuple[str, bool]]
    """By attribute: the key of the column, and whether None is left out, as in a flush."""
    nullable: Mapping[str, None]
    """The columns that are NULL without a value."""
    defaults: Sequence[tuple[str, Any]]
    """Attributes whose default is a function without arguments, and these functions."""
    required: frozenset[str]
    """Columns of the key that get a value from nowhere else."""
    relationships: frozenset[str]


_PLANS: "WeakKeyDictionary[Mapper[Any], _Plan | None]" = WeakKeyDictionary()


class RecentLateRows:
    """Whether rows may wait in the isolated units of a store: not within ten units after one whose waiting rows were refused.

    Then each handler of an isolated unit is flushed alone, and one whose rows are refused is undone alone.
    """

    def __init__(self) -> None:
        self._left = 0

    def may_wait(self, messages: int, *, isolated: bool) -> bool:
        """Return whether rows of a unit with this number of messages may wait; always if it is not isolated."""
        if not isolated:
            return True
        is_over = self._left <= 0
        self._left = max(0, self._left - messages)
        return is_over

    def note_failure(self) -> None:
        """Note that rows which waited were refused."""
        self._left = UNITS * LARGEST_UNIT


class LateRows:
    """The rows of one unit that wait to be inserted."""

    def __init__(self, *, at_once: bool = False) -> None:
        """Insert rows whose key the database numbers with a statement that returns it, if that makes one statement of them."""
        self._at_once = at_once
        self._waiting: list[tuple[_Plan, list[Row]]] = []
        self._checked: type[Session] | None = None
        """The class of sessions that is known to have no listeners."""
        self._silent: tuple[object, ...] = ()
        """What its sessions have instead of listeners, the same objects in each session."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self, session: Session) -> bool:
        """Take the rows of the new objects of a session, and detach its objects. False: the session must be flushed.

        Calls functions of defaults, so it is called in the context of the handler.
        """
        try:
            if session.__class__ is not self._checked:
                _check_class(session)
                self._checked, self._silent = session.__class__, _listeners(session.dispatch)
            elif not all(map(is_, _listeners(session.dispatch), self._silent)):
                return False
            states = _states(session)
            rows = [_row(state) for state in states]
            if len(rows) > 1:
                _check_order(plan for plan, _ in rows)
        except _CannotWait:
            return False
        if session.expire_on_commit and session.identity_map:
            session.expire_all()  # what was only read
        session.expunge_all()
        is_left = False
        for state, (plan, row) in zip(states, rows, strict=True):
            kept = state.obj()
            if kept is not None:
                session.add(kept)
                is_left = True
            elif is_left:  # it is inserted behind the one that is kept
                session.add(_recreate(state, plan, row))
            else:
                self._add(plan, row)
        return not is_left

    def write(self, connection: Connection) -> None:
        """Insert what waits; in the greenlet. Raises what SQLAlchemy and the driver raise."""
        waiting, self._waiting = self._waiting, []
        for plan, rows in waiting:
            numbered = plan.numbered if self._at_once and len(rows) > 1 else None
            connection.execute(plan.insert if numbered is None else numbered, rows)

    def _add(self, plan: _Plan, row: Row) -> None:
        if self._waiting:
            last, rows = self._waiting[-1]
            if last is plan and rows[0].keys() == row.keys():
                rows.append(row)
                return
        self._waiting.append((plan, [row]))


def _check_class(session: Session) -> None:
    """Raise _CannotWait for a class of sessions with listeners or methods that see a flush, or that an object is added."""
    kind = type(session)
    if kind.flush is not Session.flush or users_class(kind).get_bind is not Session.get_bind:
        raise _CannotWait
    if any(_listeners(session.dispatch)):
        raise _CannotWait


def complete(session: Session) -> None:
    """Set the values of defaults on new objects that are functions, in the context of the handler; `take` comes later."""
    try:
        _check_class(session)
        for state in _states(session):
            _complete(_checked_plan(state), state.dict)
    except _CannotWait:
        return


def _states(session: Session) -> list[InstanceState[Any]]:
    """Return the states of the new objects in the order in which they were added, without a reference to the objects.

    Raises _CannotWait for a session with anything else to write.
    """
    if session.identity_map and (session.dirty or session.deleted):
        raise _CannotWait
    new = session.new
    if not new:
        return []
    states: list[InstanceState[Any]] = [instance_state(found) for found in new]
    if len(states) > 1:
        states.sort(key=lambda state: state.insert_order or 0)
    return states


def _row(state: InstanceState[Any]) -> tuple[_Plan, Row]:
    plan = _checked_plan(state)
    values: dict[str, Any] = state.dict
    if plan.defaults:
        _complete(plan, values)
    row: Row = dict(plan.nullable)
    for attribute, (column, drops_none) in plan.columns.items():
        if attribute not in values:
            continue
        value = values[attribute]
        if value is None and drops_none:
            continue
        row[column] = value if type(value) in _PLAIN else _copied(value)
    if plan.required and not plan.required <= row.keys():
        raise _CannotWait
    return plan, row


def _complete(plan: _Plan, values: dict[str, Any]) -> None:
    for attribute, default in plan.defaults:
        if attribute not in values or (values[attribute] is None and plan.columns[attribute][1]):  # a flush leaves None out
            values[attribute] = default(None)


def _recreate(state: InstanceState[Any], plan: _Plan, row: Row) -> object:
    """Return an object with the values of one that is gone."""
    made = state.manager.new_instance()
    values = {attribute: row[column] for attribute, (column, _) in plan.columns.items() if column in row}
    instance_state(made).dict.update(values)
    return made


def _check_order(plans: Iterable[_Plan]) -> None:
    """Raise _CannotWait if rows of tables that refer to each other are added by one handler: a flush finds their order."""
    tables = {plan.table for plan in plans}
    if len(tables) > 1 and any(each.foreign_keys for each in tables):
        referred = {each.target_fullname.rpartition(".")[0] for table in tables for each in table.foreign_keys}
        if referred & {table.fullname for table in tables}:
            raise _CannotWait


def _checked_plan(state: InstanceState[Any]) -> _Plan:
    """Return the plan of an object's class. Raises _CannotWait if the object itself needs a flush."""
    mapper = state.manager.mapper
    try:
        plan = _PLANS[mapper]
    except KeyError:
        plan = _PLANS[mapper] = _plan(mapper)
    if plan is None or state.key is not None:
        raise _CannotWait
    dispatch, of_instances = mapper.dispatch, mapper.class_manager.dispatch
    if (
        dispatch.before_insert
        or dispatch.after_insert
        or of_instances.refresh_flush
        or of_instances.expire
        or of_instances.refresh
    ):
        raise _CannotWait
    if plan.relationships:
        values = state.dict
        for name in plan.relationships:
            if values.get(name):  # other objects: the order of the rows, and their keys, are the flush's to find
                raise _CannotWait
    return plan


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, enum.Enum):
        return value
    if kind is dict:
        return {_copied(name): _copied(each) for name, each in value.items()}
    if kind is list:
        return [_copied(each) for each in value]
    raise _CannotWait


def _plan(mapper: Mapper[Any]) -> _Plan | None:
    """Return how objects of a class become rows. None: they need a flush."""
    table = mapper.local_table
    if not isinstance(table, Table) or len(mapper.tables) != 1 or mapper.inherits or mapper.polymorphic_on is not None:
        return None
    if mapper.version_id_col is not None or any(each.lazy in {"dynamic", "write_only"} for each in mapper.relationships):
        return None
    mapped: dict[str, Column[Any]] = {}
    for attribute in mapper.column_attrs:
        columns = [each for each in attribute.columns if isinstance(each, Column)]
        if len(columns) > 1:
            return None
        mapped.update((attribute.key, each) for each in columns if each.computed is None)
    if {each.key for each in mapped.values()} != {each.key for each in table.c if each.computed is None}:
        return None  # a column that is not mapped may have a default of its own
    if not all(_is_simple(each) for each in mapped.values()):
        return None
    defaults = [(name, function) for name, each in mapped.items() if (function := _function_of(each)) is not None]
    nullable = [each.key for each in mapped.values() if not (_has_default(each) or each.type.should_evaluate_none)]
    keys = {*table.primary_key, *mapper.primary_key}
    numbers = [] if table.autoincrement_column is None else [table.autoincrement_column]
    required = {each.key for each in keys if not _has_own_default(each)} - _numbered(table)
    return _Plan(
        table,
        insert(table).inline(),
        None if not numbers or _refers_to_itself(table) else insert(table).returning(*numbers),
        {name: (each.key, not each.type.should_evaluate_none) for name, each in mapped.items()},
        dict.fromkeys(nullable),
        tuple(defaults),
        frozenset(required),
        frozenset(each.key for each in mapper.relationships),
    )


def _refers_to_itself(table: Table) -> bool:
    return any(each.target_fullname.rpartition(".")[0] == table.fullname for each in table.foreign_keys)


def _function_of(column: Column[Any]) -> Callable[[Any], Any] | None:
    """Return the function without arguments that is the default of a column. It is called with one argument that it ignores."""
    default: Any = column.default
    return default.arg if default is not None and default.is_callable else None


def _has_own_default(column: Column[Any]) -> bool:
    return column.default is not None or column.server_default is not None


def _has_default(column: Column[Any]) -> bool:
    return column.primary_key or _has_own_default(column)


def _numbered(table: Table) -> set[str]:
    column = table.autoincrement_column
    return set() if column is None else {column.key}


def _is_simple(column: Column[Any]) -> bool:
    """Return whether no code of the user's runs when a value is written, but for a default without arguments."""
    default: Any = column.default
    if default is not None and default.is_callable and getattr(default, "_fn", default.arg) is default.arg:
        return False  # it asks for the context of the INSERT
    return _is_own(column.type)


def _is_own(kind: TypeEngine[Any]) -> bool:
    """Return whether a type is SQLAlchemy's own, for each database."""
    if isinstance(kind, PickleType) or not all(map(_is_own, kind._variant_mapping.values())):  # noqa: SLF001 - no public name
        return False
    inner = getattr(kind, "item_type", None)
    return type(kind).__module__.startswith("sqlalchemy.") and (not isinstance(inner, TypeEngine) or _is_own(inner))
