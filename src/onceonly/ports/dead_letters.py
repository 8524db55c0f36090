"""DeadLetters: messages given up on, kept where a person can look, retry and purge."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.failure_group import FailureGroup, failure_group
from onceonly.model.identity import Identity
from onceonly.ports.operators import ActionLog


class Filter(Struct, frozen=True, kw_only=True):
    """Which dead letters: by endpoint, message type, a part of the reason, and failure group. Empty means all.

    `failure` is the key of a failure group in 32 hexadecimal digits.
    """

    endpoint: str = ""
    type: str = ""
    reason: str = ""
    failure: str = ""

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter is selected."""
        type_ = letter.message.type if letter.message else ""
        selected = self.endpoint in {"", letter.endpoint} and self.type in {"", type_} and self.reason in letter.reason
        return selected and (not self.failure or failure_group(letter).key.hex() == self.failure)


class DeadLetters(Protocol):
    """Kept in the endpoint's store or a database named in settings."""

    async def add(self, letter: DeadLetter) -> None:
        """Store it durably. Idempotent on its key; the first reason is kept. Raises CommitFailed, OutcomeUnknown."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order they were added, beginning behind the one with key `after`."""

    async def get(self, key: str) -> DeadLetter | None:
        """Return one letter, or None."""

    async def count(self, chosen: Filter) -> int:
        """Count letters."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove letters; returns how many there were."""


class PlacedLetter(NamedTuple):
    """A dead letter and its position. A later letter has a higher position, and no position is used twice."""

    position: int
    letter: DeadLetter


class Extent(NamedTuple):
    """How many dead letters there are, and the position of the last one: 0 if there are none."""

    total: int
    last: int


class LetterSearch(NamedTuple):
    """Letters that a search has found, and the position of the last one that it has read: 0 if none is left."""

    found: tuple[PlacedLetter, ...]
    reached: int


class GroupCount(Struct, frozen=True):
    """The dead letters of one endpoint with the same failure.

    `first` and `last` are when the first and the last of them were stored, in milliseconds since 1970. `latest` is the key of
    the last one. `group` is None if they are unreadable.
    """

    endpoint: str
    group: FailureGroup | None
    count: int
    first: int
    last: int
    latest: str

    @property
    def key(self) -> str:
        """The key of the group in 32 hexadecimal digits, as in `Filter.failure`. Empty if `group` is None."""
        return self.group.key.hex() if self.group else ""


class GroupCounts(NamedTuple):
    """Groups of dead letters, the largest first. If not `complete`, letters beyond a limit were not counted."""

    groups: tuple[GroupCount, ...]
    complete: bool = True


@runtime_checkable
class LetterIndex(Protocol):
    """What dead letters in a database offer beyond `DeadLetters`. They are found by an index.

    Each method reads a limited number of rows, except for a type or a part of the reason: without `search` these are compared
    in all letters of the endpoint, and `extent` without a limit counts all. All methods raise CommitFailed, OutcomeUnknown.
    """

    @property
    def actions(self) -> ActionLog:
        """What operators did with these dead letters."""

    async def endpoints(self) -> tuple[str, ...]:
        """List the names of the endpoints that have dead letters."""

    async def groups(self, endpoint: str = "") -> GroupCounts:
        """Count the dead letters of one endpoint, or of all, by failure group."""

    async def placed(
        self, chosen: Filter, *, after: int = 0, upto: int | None = None, limit: int = 100, newest: bool = False
    ) -> tuple[PlacedLetter, ...]:
        """List dead letters whose position is above `after` and at most `upto`, in order; with `newest` in reverse order."""

    async def search(self, chosen: Filter, *, before: int | None, limit: int, read: int) -> LetterSearch:
        """Read the newest `read` letters of an endpoint or a group before a position, and list the first `limit` that match."""

    async def extent(self, chosen: Filter, *, limit: int | None = None) -> Extent:
        """Return how many dead letters are selected now, counted up to a limit, and the position of the last of them."""

    async def of_message(self, endpoint: str, identity: Identity) -> tuple[DeadLetter, ...]:
        """List the dead letters of one message, at most 100: one for each body."""


@runtime_checkable
class ReadsNewest(Protocol):
    """Dead letters without an index, of which the newest can be read."""

    async def newest(self, chosen: Filter, limit: int) -> tuple[DeadLetter, ...]:
        """List the last dead letters that were added, the newest first. Not more than `limit` are read.

        Raises CommitFailed, OutcomeUnknown.
        """
