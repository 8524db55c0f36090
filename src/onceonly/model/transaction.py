"""A transaction: its options, the decision of its block, and the stored answer for a client that repeats its request."""

from msgspec import Struct

from onceonly.model.identity import Identity, hash_of
from onceonly.model.record import Effect

LONGEST_KEY = 255
"""How many bytes of UTF-8 a client's key may have."""

_ATTEMPT = "an attempt, milliseconds: "


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
    """What is committed under a client's key: who did it, what was asked, and the answer."""

    attempt: str
    fingerprint: bytes
    answer: bytes | None = None


def key_of(endpoint: str, key: str) -> bytes:
    """Give the 16 bytes under which an endpoint keeps the answer to a client's key."""
    return hash_of(endpoint.encode(), key.encode())


def scoped_key(scope: str, key: str) -> str:
    """Give the text that stands for a client's key within a scope.

    It is longer than any client's key, so the key of one scope is never that of another, nor one without a scope.
    """
    return hash_of(b"scope", scope.encode(), key.encode()).hex().ljust(LONGEST_KEY + 1, ".")


class Control(Struct, frozen=True, kw_only=True):
    """What a control message says: look how this attempt ended, in the store's document `unit`, for the `look`-th time.

    `endpoint` is whose transaction it is, which may be another than the one that is asked to look.
    """

    endpoint: str
    attempt: str
    key: str = ""
    unit: str = ""
    look: int = 1

    @property
    def identity(self) -> Identity:
        """Under which the record is found."""
        return Identity(self.endpoint, self.attempt)
