"""Upkeep: what an endpoint does beside handling, from time to time, where it keeps more than a store and a queue."""

from typing import NamedTuple, Protocol

from onceonly.ports.token_store import TokenStore


class Counter(Protocol):
    """A number that outlives processes; several may add to it."""

    async def add(self, count: int) -> None:
        """Add to it, durably. Raises Failed, Unknown: after that it may have been added or not."""

    async def read(self) -> int:
        """Give it. Raises Failed, Unknown."""


class Sweeps(Protocol):
    """What attempts that were never committed left behind."""

    async def sweep(self, older_than: int, limit: int) -> int:
        """Remove some of what began before `older_than` (milliseconds since 1970); gives how much. Raises Failed, Unknown."""


class Expires(Protocol):
    """A place where something expires, and nobody else removes it."""

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove some of what has expired; gives how much, `limit` where there may be more. Raises Failed, Unknown."""


class Upkeep(NamedTuple):
    """What one endpoint has to keep in order: nothing, unless it has tokens elsewhere, or makes things.

    `after` is how old, in seconds, something must be before it is taken for left behind. `tokens` may hold prepared ones.
    `drops` counts the messages that were dropped because no token of theirs was live. In `marks` a dedup store's marks expire.
    """

    after: float = 600.0
    tokens: TokenStore | None = None
    things: Sweeps | None = None
    drops: Counter | None = None
    marks: Expires | None = None

    @property
    def is_swept(self) -> bool:
        """Tell whether there is anything to look for from time to time."""
        return any(each is not None for each in (self.tokens, self.things, self.marks))


NOTHING = Upkeep()
