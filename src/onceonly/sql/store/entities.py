"""Entities as rows: a unit loads and locks those of its messages, and saves what its handlers made of them in its commit."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from onceonly.model.entities import Changes
from onceonly.model.errors import CommitRefused, ConflictError, PermanentFailure
from onceonly.model.message import Message
from onceonly.sql.store.statements import StoreScope, chunks, packets, stored_bytes
from onceonly.sql.store.tables import ENTITY_KEY_BYTES

Loaded = Mapping[str, bytes | None]
"""The states of entities by their keys; None for one that does not exist."""

_NONE: Loaded = {}


def load_all(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> Loaded:
    return load(connection, scope, list({message.unit for message in messages if message.unit}))


def load(connection: Connection, scope: StoreScope, units: Sequence[str]) -> Loaded:
    """Load entities and lock them, in key order against deadlocks.

    One that does not exist cannot be locked: of two units that make it, one finds it there at its commit. Raises
    PermanentFailure for a key that is too long, and for a state that another program wrote and that is not bytes.
    """
    if not units:
        return _NONE
    keys = sorted(units, key=_in_bytes)
    for key in keys:
        if len(_in_bytes(key)) > ENTITY_KEY_BYTES:
            raise PermanentFailure(
                f"entity key {key[:60]!r}... is too long; the limit of a SQL store is {ENTITY_KEY_BYTES} bytes. Shorten it"
            )
    loaded: dict[str, bytes | None] = dict.fromkeys(keys)
    for some in chunks(keys):
        rows = scope.database.dialect.lock(connection, scope.tables.entities, some, key="key", returning=("key", "state"))
        loaded.update((row.key, stored_bytes(row.state, f"the state of entity {row.key[:60]!r}")) for row in rows)
    return loaded


def save(connection: Connection, scope: StoreScope, loaded: Loaded, changes: Changes) -> None:
    """Save changed entities, one statement each for those made, changed and deleted. Raises ConflictError, CommitRefused."""
    changed = [key for key in sorted(changes, key=_in_bytes) if changes[key] != loaded[key]]
    now = scope.database.clock.now()
    states = {key: state for key in changed if (state := changes[key]) is not None}
    rows = {key: {"key": key, "state": state, "changed_at": now} for key, state in states.items()}
    dialect, table = scope.database.dialect, scope.tables.entities
    with scope.database.translate(locked=ConflictError, refused=CommitRefused):
        for some in packets((row for key, row in rows.items() if loaded[key] is not None), "state"):
            dialect.update_all(connection, table, some, key="key")
        for made in packets((row for key, row in rows.items() if loaded[key] is None), "state"):
            if len(dialect.insert_absent(connection, table, made, key=["key"])) < len(made):
                raise ConflictError("another worker created an entity of this unit first")
        for gone in chunks([key for key in changed if changes[key] is None]):
            dialect.remove(connection, [table], gone, key="key")


def _in_bytes(key: str) -> bytes:
    return key.encode(errors="surrogatepass")
