"""Actions of operators in a SQL database. The row of a running action is locked by each write of its runner."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.action import Action, ActionItem, ActionKind, ActionScope, ActionState, ItemOutcome
from onceonly.model.identity import Identity, claim_key
from onceonly.sql.database import Database
from onceonly.sql.store.statements import chunks
from onceonly.sql.store.tables import tables

_encode = msgspec.json.Encoder().encode
_decode_scope = msgspec.json.Decoder(ActionScope).decode
_Read = TypeVar("_Read", Action, ActionItem)


class SqlActionLog:
    """Implements the ActionLog port in the database of the dead letters."""

    def __init__(self, database: Database) -> None:
        self._database = database
        own = tables(database.prefix, database.schema)
        self._actions, self._items = own.actions, own.action_items

    async def begin(self, action: Action) -> Action:
        """Insert the row, in a transaction that waits for the disk; see the port."""
        stamped = replace(action, at=action.at or self._database.clock.now())
        async with self._database.writing() as connection:
            result = await connection.execute(insert(self._actions).values(_row(stamped)))
            return replace(stamped, position=int(result.inserted_primary_key[0]))  # type: ignore[index]

    async def get(self, position: int) -> Action | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(select(self._actions).where(self._actions.c.position == position))).one_or_none()
        return None if row is None else _readable(_action, row)

    async def recent(self, *, before: int = 0, limit: int = 100) -> tuple[Action, ...]:
        async with self._database.reading() as connection:
            return _all_readable(_action, await connection.execute(self.listing(before, limit)))

    def listing(self, before: int, limit: int) -> Select[Any]:
        actions = self._actions.c
        query = select(self._actions).order_by(actions.position.desc()).limit(limit)
        return query.where(actions.position < before) if before else query

    async def abandoned(self, now: int, limit: int = 100) -> tuple[Action, ...]:
        actions = self._actions.c
        query = select(self._actions).where(actions.state == ActionState.RUNNING.value, actions.lease < now)
        async with self._database.reading() as connection:
            return _all_readable(_action, await connection.execute(query.order_by(actions.position).limit(limit)))

    async def lead(self, position: int, runner: str, *, now: int, until: int) -> Action | None:
        actions = self._actions.c
        free = (actions.lease < now) | (actions.runner == runner)
        change = update(self._actions).where(actions.position == position, actions.state == ActionState.RUNNING.value, free)
        async with self._database.writing() as connection:
            result = await connection.execute(change.values(runner=runner, lease=until))
        return await self.get(position) if result.rowcount else None

    async def plan(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Insert items with the progress of their action, all or nothing; see the port."""

        def write(connection: Connection) -> bool:
            if not self._progress(connection, action):
                return False
            if items:
                self._database.dialect.insert_all(connection, self._items, [_item_row(item) for item in items])
            return True

        async with self._database.writing() as connection:
            return await connection.run_sync(write)

    async def settle(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Update items with the progress of their action, all or nothing; see the port."""

        def write(connection: Connection) -> bool:
            if not self._progress(connection, action):
                return False
            self._update(connection, items)
            return True

        async with self._database.writing() as connection:
            return await connection.run_sync(write)

    async def update(self, items: Sequence[ActionItem]) -> None:
        if items:
            async with self._database.writing() as connection:
                await connection.run_sync(self._update, items)

    async def stop(self, position: int) -> bool:
        """Change the state of a running action; its runner sees it at the next page."""
        actions = self._actions.c
        change = update(self._actions).where(actions.position == position, actions.state == ActionState.RUNNING.value)
        async with self._database.writing() as connection:
            return (await connection.execute(change.values(state=ActionState.STOPPED.value, lease=0))).rowcount > 0

    async def items(
        self, action: int, *, after: int = 0, outcome: ItemOutcome | None = None, limit: int = 100
    ) -> tuple[ActionItem, ...]:
        items = self._items.c
        query = select(self._items).where(items.action == action, items.number > after)
        query = query.where(items.outcome == outcome.value) if outcome else query
        async with self._database.reading() as connection:
            return _all_readable(_item, await connection.execute(query.order_by(items.number).limit(limit)))

    async def of_message(self, endpoint: str, identity: Identity, limit: int = 100) -> tuple[tuple[Action, ActionItem], ...]:
        async with self._database.reading() as connection:
            rows = await connection.execute(self.identifying(endpoint, identity, limit))
            items = _all_readable(_item, rows)
            wanted = select(self._actions).where(self._actions.c.position.in_({item.action for item in items}))
            found = _all_readable(_action, await connection.execute(wanted))
        actions = {action.position: action for action in found}
        return tuple((actions[item.action], item) for item in items if item.action in actions)

    def identifying(self, endpoint: str, identity: Identity, limit: int) -> Select[Any]:
        items = self._items.c
        query = select(self._items).where(items.identity == claim_key(endpoint, identity))
        return query.order_by(items.action.desc(), items.number.desc()).limit(limit)

    async def expire(self, now: int, *, actions_before: int, limit: int = 1000) -> int:
        """Empty and delete in portions, each found by an index; see the port."""
        actions, items = self._actions.c, self._items.c
        over = select(items.action, items.number).where(items.stored_until <= now).limit(limit)
        emptied = update(self._items).where(items.action == bindparam("of"), items.number == bindparam("which"))
        emptied = emptied.values(stored=None, stored_until=None)
        first = select(actions.position, actions.at).order_by(actions.position).limit(1)

        def clean(connection: Connection) -> int:
            rows = [{"of": row.action, "which": row.number} for row in connection.execute(over)]
            if rows:
                connection.execute(emptied, rows)
                return len(rows)
            oldest = connection.execute(first).one_or_none()
            if oldest is None or oldest.at >= actions_before:
                return 0
            its = select(items.number).where(items.action == oldest.position).order_by(items.number).limit(limit)
            numbers = list(connection.scalars(its))
            if numbers:
                gone = items.number.between(numbers[0], numbers[-1])
                connection.execute(delete(self._items).where(items.action == oldest.position, gone))
            else:
                connection.execute(delete(self._actions).where(actions.position == oldest.position))
            return max(1, len(numbers))

        async with self._database.reading() as connection:  # most rounds find nothing, and take no write lock
            is_over = (await connection.execute(over)).first() is not None
            oldest = (await connection.execute(first)).one_or_none()
        if not is_over and (oldest is None or oldest.at >= actions_before):
            return 0
        async with self._database.writing() as connection:
            return await connection.run_sync(clean)

    def _progress(self, connection: Connection, action: Action) -> bool:
        """Update the action's row, and lock it until the end of the transaction. False if it is no longer the runner's."""
        actions = self._actions.c
        own = update(self._actions).where(
            actions.position == action.position,
            actions.runner == action.runner,
            actions.state == ActionState.RUNNING.value,
        )
        row = _row(action)
        changed = {name: row[name] for name in ("reached", "done", "kept", "state", "lease", "reason", "total")}
        return connection.execute(own.values(changed)).rowcount > 0

    def _update(self, connection: Connection, items: Sequence[ActionItem]) -> None:
        own = self._items.c
        change = update(self._items).where(own.action == bindparam("of"), own.number == bindparam("which"))
        names = ("outcome", "detail", "before", "after", "stored", "stored_until", "at")
        change = change.values({name: bindparam(f"new_{name}") for name in names})
        rows = []
        for item in items:
            row = _item_row(item)
            rows.append({"of": item.action, "which": item.number} | {f"new_{name}": row[name] for name in names})
        for some in chunks(rows, 1000):
            connection.execute(change, list(some))


def _all_readable(read: Callable[[Any], _Read], rows: Iterable[Any]) -> tuple[_Read, ...]:
    """Read rows. One that cannot be read is left out: another program, or a newer version, wrote it."""
    return tuple(found for row in rows if (found := _readable(read, row)) is not None)


def _readable(read: Callable[[Any], _Read], row: Any) -> _Read | None:
    try:
        found = read(row)
        return msgspec.convert(msgspec.to_builtins(found, builtin_types=(bytes,)), type(found))
    except UNDECODABLE:
        return None


def _row(action: Action) -> dict[str, Any]:
    return {
        "at": action.at,
        "actor": action.actor,
        "method": action.method,
        "action": action.action.value,
        "endpoint": action.endpoint,
        "scope": _encode(action.scope),
        "upto": action.upto,
        "reached": action.reached,
        "reason": action.reason,
        "state": action.state.value,
        "total": action.total,
        "done": action.done,
        "kept": action.kept,
        "runner": action.runner,
        "lease": action.lease,
    }


def _action(row: Any) -> Action:
    stored: Mapping[str, Any] = row._mapping  # noqa: SLF001 - the public way to read a row by names
    values = {name: stored[name] for name in Action.__struct_fields__}
    values |= {"action": ActionKind(row.action), "state": ActionState(row.state), "scope": _decode_scope(row.scope)}
    return Action(**values)


def _item_row(item: ActionItem) -> dict[str, Any]:
    return {
        "action": item.action,
        "number": item.number,
        "letter": item.letter,
        "identity": item.identity or None,
        "outcome": item.outcome.value,
        "detail": item.detail,
        "before": item.before or None,
        "after": item.after or None,
        "stored": item.stored or None,
        "stored_until": item.stored_until or None,
        "at": item.at,
    }


def _item(row: Any) -> ActionItem:
    return ActionItem(
        action=row.action,
        number=row.number,
        letter=row.letter,
        identity=row.identity or b"",
        outcome=ItemOutcome(row.outcome),
        detail=row.detail,
        before=row.before or b"",
        after=row.after or b"",
        stored=row.stored or b"",
        stored_until=row.stored_until or 0,
        at=row.at,
    )
