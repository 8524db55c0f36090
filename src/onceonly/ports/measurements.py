"""Bounded looks at what waits, for metrics and pages. Optional: an adapter without them is not measured, or by its other calls.

Each look costs the same however much there is: it counts up to a limit, and finds the oldest by an index. Instants are
milliseconds since 1970. Every call raises CommitFailed, OutcomeUnknown or RetryableError.
"""

from typing import Protocol, runtime_checkable

from msgspec import Struct


class QueueSample(Struct, frozen=True, kw_only=True):
    """The queue of an endpoint. Each number is at most the limit that was asked for.

    `oldest` is for how many milliseconds the oldest waiting message has been due, 0 if none waits.
    """

    waiting: int
    held: int
    delayed: int
    oldest: int


class AgedCount(Struct, frozen=True, kw_only=True):
    """How many there are, at most the limit that was asked for, and when the oldest was stored; 0 if there is none."""

    count: int
    oldest: int


class StoredRemains(Struct, frozen=True, kw_only=True):
    """What is left in the tables of a SQL store. Each number is at most the limit that was asked for.

    `records`, `reservations` and running `actions` are those of one endpoint. Claims, keys, tokens and entities do not show
    whose they are, so these are the numbers of all endpoints. `retention` is for how many milliseconds the tables keep claims,
    0 if that is not decided. `last_claim` and `last_key` are when the newest ones were stored, 0 without one. Claims that never
    expire, because their records wait, count as stored `now`.
    """

    records: int
    claims: int
    keys: int
    tokens: int
    entities: int
    reservations: int
    actions: int
    retention: int
    last_claim: int
    last_key: int
    now: int


@runtime_checkable
class MeasuresQueue(Protocol):
    """A transport that can look at a queue without counting all of it."""

    async def measure_queue(self, endpoint: str, limit: int) -> QueueSample:
        """Look at the queue of an endpoint. Raises QueueMissing if it was never declared."""


@runtime_checkable
class MeasuresRecords(Protocol):
    """A store that can count the pending records of its endpoint."""

    async def measure_records(self, limit: int) -> AgedCount:
        """Count the records that are not dispatched."""


@runtime_checkable
class MeasuresLetters(Protocol):
    """Dead letters that can be counted up to a limit."""

    async def measure_letters(self, endpoint: str, limit: int) -> AgedCount:
        """Count the dead letters of an endpoint. The oldest is the one that was stored first."""


@runtime_checkable
class EstimatesClaims(Protocol):
    """A ring that knows about how many claims there are."""

    async def estimate(self) -> int | None:
        """Return the number of claims by the statistics of the database, None where it has none."""
