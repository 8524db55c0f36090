"""A transaction: its options, the decision of its block, and the stored answer for a client that repeats its request."""

import re

from msgspec import Struct

from onceonly.model.identity import Identity, hash_of
from onceonly.model.record import Effect, Record

LONGEST_KEY = 255
"""How many bytes of UTF-8 a client's key may have."""

MOST_RECORDS = 100_000
"""How many messages one transaction of a caller may send under a key. A longer list would not be read."""

_ATTEMPT = "an attempt, milliseconds: "
_WITH_RECORDS = re.compile(r"([0-9a-f]{32})/([0-9]{1,6})")


class TransactionAttempt(Struct, frozen=True, kw_only=True):
    """One attempt at a transaction of an endpoint.

    `attempt` is a fresh id, and the whole identity of this attempt. `key` is the client's, or empty; `fingerprint` are 16 bytes
    that identify the request under it. The commit must come within `max_commit` milliseconds of the opening. Another attempt
    that has taken the key is waited for `wait` milliseconds, None for as long as any lock.
    """

    endpoint: str
    attempt: str
    max_commit: int
    wait: int | None = None
    key: str = ""
    fingerprint: bytes = b""

    @property
    def identity(self) -> Identity:
        """Under which the record is found, and from which the ids of its messages are derived."""
        return Identity(self.endpoint, self.attempt)


def attempt_unit(max_commit: int) -> str:
    """Return the unit of an attempt whose record is found without one: it tells a store how to fence the attempt."""
    return f"{_ATTEMPT}{max_commit}"


def longest_commit(unit: str) -> int | None:
    """Return the milliseconds within which the attempt in this unit is committed, None when it is a message's unit."""
    return int(unit.removeprefix(_ATTEMPT)) if unit.startswith(_ATTEMPT) else None


class BlockDecision(Struct, frozen=True):
    """What the block decided, next to the changes that sit in its resources: messages in order, and the answer to keep."""

    effects: tuple[Effect, ...] = ()
    answer: bytes | None = None


class IdempotencyEntry(Struct, frozen=True):
    """What is committed under a client's key: the attempt, what was asked, and the answer.

    `records` are those of the attempt whose effects are still to be dispatched. They are read together with the key.
    """

    attempt: str
    fingerprint: bytes
    answer: bytes | None = None
    records: tuple[Record, ...] = ()


def attempt_with_records(attempt: str, records: int) -> str:
    """Return the text that stands for an attempt in a caller's own transaction, which has a record for each message.

    Their ids are those that `records_of` gives. Some may be missing: a savepoint that was rolled back took them along.
    """
    return f"{attempt}/{records}"


def records_of(endpoint: str, attempt: object) -> tuple[Identity, ...]:
    """Return the identities that the records of a stored attempt may have."""
    found = _WITH_RECORDS.fullmatch(attempt) if isinstance(attempt, str) else None
    if found is None:
        return (Identity(endpoint, attempt),) if isinstance(attempt, str) else ()
    return tuple(Identity(endpoint, f"{found[1]}.{number}") for number in range(min(int(found[2]), MOST_RECORDS)))


def key_of(endpoint: str, key: str) -> bytes:
    """Return the 16 bytes under which an endpoint keeps the answer to a client's key."""
    return hash_of(endpoint.encode(), key.encode())


def scoped_key(scope: str, key: str) -> str:
    """Return the text that stands for a client's key within a scope.

    It is longer than any client's key, so the key of one scope is never that of another, nor one without a scope.
    """
    return hash_of(b"scope", scope.encode(), key.encode()).hex().ljust(LONGEST_KEY + 1, ".")


def mark_of(attempt: str) -> str:
    """Return the text under which a store that deletes records keeps that an attempt without a client's key was committed.

    It is longer than any client's key, and no key within a scope has it.
    """
    return hash_of(b"attempt", attempt.encode()).hex().ljust(LONGEST_KEY + 1, ".")


class Control(Struct, frozen=True, kw_only=True):
    """What a control message says: look how this attempt ended, in the unit of its record, for the `look`-th time.

    `endpoint` is whose transaction it is, which may be another than the one that is asked to look.
    """

    endpoint: str
    attempt: str
    key: str = ""
    unit: str = ""
    look: int = 1

    @property
    def identity(self) -> Identity:
        return Identity(self.endpoint, self.attempt)
