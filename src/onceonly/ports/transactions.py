"""Transactions: units that a user opens, with a client's key kept in the same commit. Outcomes as in `ports.store`."""

from typing import Protocol

from onceonly.model.record import Record
from onceonly.model.transaction import Kept, Opening
from onceonly.ports.store import Resources


class OpenTransaction(Protocol):
    """One open transaction, which ends by `commit` or `abandon`."""

    resources: Resources

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Make business state, the record if there is one, and the client's key with its answer final in one atomic step.

        Never later than `max_commit` after the opening, by the store's own clock: that is Failed. A key that was committed
        meanwhile is a Conflict. Raises Conflict, CommitRefused, Failed, Unknown.
        """

    def abandon(self) -> None:
        """Give it up; nothing of it ever becomes visible. Awaits nothing."""


class Transactions(Protocol):
    """The transactions of one endpoint's store."""

    async def open(self, opening: Opening) -> OpenTransaction | Kept:
        """Open a transaction, and take the client's key in it, if there is one; gives what is kept if the key is committed.

        Another open transaction that has taken the same key is waited for, or shows as Conflict here or at commit. Raises
        Conflict, Failed, Unknown.
        """

    async def kept(self, key: str) -> Kept | None:
        """Give what is committed under a client's key; a read that is linearizable with commits. Raises Failed, Unknown."""
