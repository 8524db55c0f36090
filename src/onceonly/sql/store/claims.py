"""Claiming: each message where its claim belongs, in the bucket for its instant or among those that have none.

A bucket's label is offered with its claims, as the first key. Only a bucket that has it already holds the slice it stands for.
It is not deleted before this unit ends. A bucket without it took the label: then nothing of the unit may be committed.

The instant is in the message's id. A message whose id contains none is claimed without one.

Two messages without an instant, as each database gets them. In a bucket the label is one more row of the INSERT, and the
records are joined by their column `claim`.

PostgreSQL, one text for any number of messages:

    INSERT INTO onceonly_claims (key, fingerprint) SELECT anon_1.key, anon_1.fingerprint
        FROM unnest($1::UUID[], $2::BIGINT[]) AS anon_1(key, fingerprint)
        ON CONFLICT (key) DO NOTHING RETURNING onceonly_claims.key
    SELECT onceonly_claims.key, onceonly_claims.fingerprint, onceonly_records.effects,
        coalesce(onceonly_records.taken_at, onceonly_records.stored_at) AS since FROM onceonly_claims
        LEFT OUTER JOIN onceonly_records ON onceonly_claims.key = onceonly_records.key
        WHERE onceonly_claims.key = ANY ($1::UUID[])

MariaDB:

    INSERT IGNORE INTO onceonly_claims (`key`, fingerprint) VALUES (%s, %s), (%s, %s) RETURNING onceonly_claims.`key`
    SELECT onceonly_claims.`key`, onceonly_claims.fingerprint, onceonly_records.effects,
        coalesce(onceonly_records.taken_at, onceonly_records.stored_at) AS since FROM onceonly_claims
        LEFT OUTER JOIN onceonly_records ON onceonly_claims.`key` = onceonly_records.`key`
        WHERE onceonly_claims.`key` IN (%s, %s)

SQLite:

    INSERT INTO onceonly_claims ("key", fingerprint) VALUES (?, ?), (?, ?) ON CONFLICT ("key") DO NOTHING RETURNING "key"
    SELECT onceonly_claims."key", onceonly_claims.fingerprint, onceonly_records.effects,
        coalesce(onceonly_records.taken_at, onceonly_records.stored_at) AS since FROM onceonly_claims
        LEFT OUTER JOIN onceonly_records ON onceonly_claims."key" = onceonly_records."key"
        WHERE onceonly_claims."key" IN (?, ?)

The SELECT runs only if the INSERT did not return all keys. It must come after it: an INSERT waits for an earlier claim of the
same key, and a SELECT before it would not see what that transaction committed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection, Table, func, select, union_all

from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import ring_key
from onceonly.ports.store import BeginResult
from onceonly.sql.store.statements import StoreScope, chunks, delete_keys, readable_record
from onceonly.sql.store.tables import THE_RING, Tables
from onceonly.sql.store.time_buckets import NO_BODY, label_row

NEVER = 1 << 62
"""When a claim arrived that no time removes: it goes with its record."""


class OtherSlice(Exception):
    """The bucket for these messages does not hold their slice, which begins at `start`; the transaction must be rolled back."""

    def __init__(self, bucket: Table, start: int, messages: Sequence[Message]) -> None:
        super().__init__(bucket.name)
        self.bucket = bucket
        self.start = start
        self.messages = tuple(messages)


class ClaimGroup(NamedTuple):
    """Where claims are made together: a table, its label's slice (None without one), and the messages by their keys, sorted."""

    table: Table
    start: int | None
    messages: Mapping[bytes, Message]


class StoredClaim(NamedTuple):
    """What is stored about a message handled before."""

    fingerprint: bytes
    effects: bytes | None
    since: int
    """When the record was stored or last taken, in milliseconds since 1970."""


def record_claim(scope: StoreScope, message: Message) -> bytes | None:
    """Return the key of a message's claim in the ring, which its record names; None when it is in no bucket."""
    instant = _bucket_instant(scope, message)
    return ring_key(scope.endpoint, message.identity, instant) if instant else None


def places(scope: StoreScope, messages: Iterable[Message]) -> list[ClaimGroup]:
    """Sort messages by where their claims belong; in one order for all units, against deadlocks."""
    outside: dict[bytes, Message] = {}
    slices: dict[tuple[int, int], dict[bytes, Message]] = {}
    buckets: dict[tuple[int, int], Table] = {}
    for message in messages:
        instant = _bucket_instant(scope, message)
        if not instant or scope.rings is None:
            outside[claim_key(scope.endpoint, message.identity)] = message
        else:
            key, ring = ring_key(scope.endpoint, message.identity, instant), scope.rings.ring(instant)
            place = (ring.bucketing.start(instant), ring.number)
            slices.setdefault(place, {})[key] = message
            buckets[place] = ring.bucket(place[0])
    found = [ClaimGroup(scope.tables.claims, None, _sorted(outside))] if outside else []
    return found + [ClaimGroup(buckets[place], place[0], _sorted(slices[place])) for place in sorted(slices)]


def claim(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> BeginResult:
    """Claim messages: first all claims, place by place, then a current read of those that were claimed before.

    Raises OtherSlice; ConflictError when one was claimed, and no longer is when it is read.
    """
    left = [place._replace(messages=_claim(connection, scope, place)) for place in places(scope, messages)]
    if not any(place.messages for place in left):
        return BeginResult(new=tuple(messages))
    known: dict[Identity, StoredClaim] = {}
    for place in left:
        known |= _read_known(connection, scope, place)
    same = [message for message in messages if _is_same(message, known)]
    stored = {message.identity: known[message.identity] for message in same}
    pending = {
        identity: None if found.effects is None else readable_record(identity.source, identity.id, found.effects)
        for identity, found in stored.items()
    }
    now = scope.database.clock.now()
    return BeginResult(
        new=tuple(message for message in messages if message.identity not in known),
        pending=tuple(record for record in pending.values() if record is not None),
        done=tuple(message for message in same if pending[message.identity] is None),
        mismatched=tuple(message for message in messages if message.identity in known and message.identity not in pending),
        ages=tuple(now - stored[identity].since for identity, record in pending.items() if record is not None),
    )


def unclaim(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> None:
    for place in places(scope, messages):
        delete_keys(connection, scope.database.dialect, [*place.messages], place.table)


def with_fingerprints(connection: Connection, scope: StoreScope, records: Sequence[Record]) -> tuple[Record, ...]:
    """Return records with the fingerprints of their claims, where these are outside of the ring."""
    claims, keys = scope.tables.claims.c, {record.identity: claim_key(scope.endpoint, record.identity) for record in records}
    query = select(claims.key, claims.fingerprint).where(scope.database.dialect.among(claims.key, "keys"))
    rows = [row for some in chunks([*keys.values()]) for row in connection.execute(query, {"keys": some})]
    found = {row.key: row.fingerprint for row in rows}
    return tuple(replace(record, fingerprint=found.get(keys[record.identity], b"")) for record in records)


def count_claims(connection: Connection, tables: Tables, buckets: Sequence[Table] = ()) -> int:
    """Count all claims, in the first ring, in these other buckets and outside of rings, and no labels."""
    counted = [select(func.count().label("count")).select_from(tables.claims)]
    counted += [
        select(func.count()).select_from(bucket).where(bucket.c.fingerprint != NO_BODY)
        for bucket in (*tables.buckets, *buckets)
    ]
    return sum(connection.scalars(union_all(*counted)))


def _claim(connection: Connection, scope: StoreScope, place: ClaimGroup) -> dict[bytes, Message]:
    """Claim in one place; returns the messages that were claimed before."""
    dialect, arrival = scope.database.dialect, _arrival(scope, place)
    rows = [{"key": key, "fingerprint": message.fingerprint, **arrival} for key, message in place.messages.items()]
    if place.start is None:
        inserted = dialect.insert_absent(connection, place.table, rows, key=["key"])
    else:
        label = label_row(place.start)
        behind = dialect.insert_behind(connection, place.table, label, rows, key="key")
        if behind is None:
            raise OtherSlice(place.table, place.start, [*place.messages.values()])
        inserted = behind
    claimed = {row.key for row in inserted}
    return {key: message for key, message in place.messages.items() if key not in claimed}


def _arrival(scope: StoreScope, place: ClaimGroup) -> dict[str, int]:
    """Return when a claim arrived, where that is not left to the database's clock, and its ring, if it is not the first.

    A claim without an instant is in no bucket, and is kept as long as those of the ring are.
    """
    if place.start is not None:
        return {}
    if not scope.claim_mode.has_history:
        return {"arrived_at": NEVER}
    ring = THE_RING if scope.rings is None else scope.rings.latest.ring.number
    arrival = {} if scope.clock is None else {"arrived_at": scope.clock.now()}
    return arrival if ring == THE_RING else {**arrival, "ring": ring}


def _read_known(connection: Connection, scope: StoreScope, place: ClaimGroup) -> dict[Identity, StoredClaim]:
    """Read fingerprints and records together, both from one state."""
    if not place.messages:
        return {}
    claims, records, dialect = place.table.c, scope.tables.records.c, scope.database.dialect
    of_claim = records.key if place.start is None else records.claim
    joined = place.table.outerjoin(scope.tables.records, claims.key == of_claim)
    since = func.coalesce(records.taken_at, records.stored_at).label("since")
    selected = select(claims.key, claims.fingerprint, records.effects, since).select_from(joined)
    query = dialect.current(selected.where(dialect.among(claims.key, "keys")))
    rows = {row.key: row for some in chunks([*place.messages]) for row in connection.execute(query, {"keys": some})}
    if len(rows) < len(place.messages):
        raise ConflictError("another worker finished a message and deleted its claim while this unit was claiming it")
    found = ((message.identity, rows[key]) for key, message in place.messages.items())
    return {identity: StoredClaim(row.fingerprint, row.effects, row.since) for identity, row in found}


def _is_same(message: Message, known: Mapping[Identity, StoredClaim]) -> bool:
    return message.identity in known and known[message.identity].fingerprint == message.fingerprint


def _bucket_instant(scope: StoreScope, message: Message) -> int:
    """Return the instant that says in which bucket a message is claimed; 0 for those that are in none."""
    if scope.rings is None or not scope.claim_mode.has_history:
        return 0
    return message.instant if message.identity not in scope.outside else 0


def _sorted(messages: Mapping[bytes, Message]) -> dict[bytes, Message]:
    return {key: messages[key] for key in sorted(messages)}
