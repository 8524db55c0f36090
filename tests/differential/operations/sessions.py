"""What handlers do to the session itself: its objects, and its savepoints."""

from dataclasses import dataclass
from functools import partial

from sqlalchemy import insert, update
from sqlalchemy.exc import IntegrityError

from tests.differential.models import Account, Order
from tests.differential.operations.base import (
    Operation,
    fail,
)
from tests.differential.tools import Tools


@dataclass(frozen=True)
class ExpungeAll(Operation):
    """`session.expunge_all`."""

    async def run(self, to: Tools) -> None:
        """Remove all objects from the session."""
        to.session.expunge_all()


@dataclass(frozen=True)
class ExpireAll(Operation):
    """`session.expire_all`."""

    async def run(self, to: Tools) -> None:
        """Have all objects read again."""
        to.session.expire_all()


@dataclass(frozen=True)
class CountSession(Operation):
    """`session.new`, `session.dirty` and `session.deleted`."""

    async def run(self, to: Tools) -> None:
        """Count the changes in the session."""
        self.note(to, (len(to.session.new), len(to.session.dirty), len(to.session.deleted), to.session.in_nested_transaction()))


@dataclass(frozen=True)
class Remember(Operation):
    """Something keeps an object after its handler ended, such as a cache."""

    account: str

    async def run(self, to: Tools) -> None:
        """Keep an account."""
        found = await to.session.get(Account, self.account)
        if found is not None:
            to.side.kept.setdefault(to.message, []).append(found)
            self.note(to, found.balance)


@dataclass(frozen=True)
class ChangeRemembered(Operation):
    """A later message changes an object that an earlier one left somewhere."""

    async def run(self, to: Tools) -> None:
        """Change it. It belongs to a session that has ended, so that is never written."""
        for message, found in to.side.kept.items():
            if message != to.message:
                for each in found:
                    each.balance = 777


@dataclass(frozen=True)
class Nested(Operation):
    """`begin_nested` of the session."""

    account: str

    async def run(self, to: Tools) -> None:
        """Add to a balance and an order, inside a savepoint."""
        async with to.session.begin_nested():
            to.session.add(Order(name=f"nested-{to.message}-{to.position}"))
            found = await to.session.get(Account, self.account)
            if found is not None:
                found.balance += 1


@dataclass(frozen=True)
class NestedRolledBack(Operation):
    """`begin_nested` of the session, rolled back by an error that the handler catches."""

    account: str

    async def run(self, to: Tools) -> None:
        """Change a balance in vain."""
        try:
            async with to.session.begin_nested():
                found = await to.session.get(Account, self.account)
                if found is not None:
                    found.balance += 50
                await to.session.flush()
                fail(self.account)
        except LookupError:
            found = await to.session.get(Account, self.account)
            self.note(to, found and found.balance)


@dataclass(frozen=True)
class NestedDuplicate(Operation):
    """`begin_nested` of the session, with an IntegrityError that the handler catches."""

    name: str

    async def run(self, to: Tools) -> None:
        """Add an order whose name may be taken."""
        try:
            async with to.session.begin_nested():
                to.session.add(Order(name=self.name))
        except IntegrityError:
            self.note(to, "taken")
        else:
            self.note(to, "free")


@dataclass(frozen=True)
class CoreNestedDuplicate(Operation):
    """`begin_nested` of the connection, with an IntegrityError that the handler catches."""

    needs = "connection"
    account: str

    async def run(self, to: Tools) -> None:
        """Insert an account that exists."""
        connection = await to.connection()
        try:
            async with connection.begin_nested():
                await connection.execute(update(Account).where(Account.id == self.account).values(balance=0))
                await connection.execute(insert(Account).values(id=self.account, balance=5))
        except IntegrityError:
            self.note(to, "taken")


@dataclass(frozen=True)
class NestedLeftOpen(Operation):
    """`begin_nested` of the session without an end. The commit of a session ends it."""

    account: str

    async def run(self, to: Tools) -> None:
        """Add to a balance inside a savepoint."""
        await to.session.begin_nested().__aenter__()
        found = await to.session.get(Account, self.account)
        if found is not None:
            found.balance += 1


@dataclass(frozen=True)
class AddInCleanup(Operation):
    """A write in the clean-up of the provider that made the repository. Other handlers do nothing."""

    async def run(self, to: Tools) -> None:
        """Leave it to the provider."""
        if to.cleanups is not None:
            to.cleanups.append(partial(to.session.add, Order(name=f"cleanup-{to.message}-{to.position}")))
