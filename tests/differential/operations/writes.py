"""What handlers write through the ORM."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import selectinload
from sqlalchemy.orm.attributes import flag_modified

from tests.differential.models import Account, Deferred, Line, Order, Versioned
from tests.differential.operations.base import (
    MARIADB,
    Operation,
)
from tests.differential.tools import Tools


@dataclass(frozen=True)
class Deposit(Operation):
    """A change of an object, which a later flush writes."""

    account: str
    amount: int

    async def run(self, to: Tools) -> None:
        """Add to a balance."""
        found = await to.session.get(Account, self.account)
        if found is not None:
            found.balance += self.amount
            self.note(to, found.balance)


@dataclass(frozen=True)
class LockAndDeposit(Operation):
    """`with_for_update()`, and a change."""

    account: str
    amount: int

    async def run(self, to: Tools) -> None:
        """Add to a balance under a lock."""
        found = await to.session.scalar(select(Account).where(Account.id == self.account).with_for_update())
        if found is not None:
            found.balance += self.amount
            self.note(to, found.balance)


@dataclass(frozen=True)
class GetLocked(Operation):
    """`session.get(..., with_for_update=True)`, and a change."""

    account: str

    async def run(self, to: Tools) -> None:
        """Double a balance under a lock."""
        found = await to.session.get(Account, self.account, with_for_update=True)
        if found is not None:
            found.balance = min(2 * found.balance, 1000)
            self.note(to, found.balance)


@dataclass(frozen=True)
class Merge(Operation):
    """`session.merge` of a new object with an existing key."""

    account: str
    balance: int

    async def run(self, to: Tools) -> None:
        """Set a balance."""
        merged = await to.session.merge(Account(id=self.account, balance=self.balance))
        self.note(to, merged.balance)


@dataclass(frozen=True)
class DeleteAccount(Operation):
    """`session.delete`, and a new object with the same key."""

    account: str

    async def run(self, to: Tools) -> None:
        """Replace an account."""
        found = await to.session.get(Account, self.account)
        if found is not None:
            await to.session.delete(found)
            await to.session.flush()
        to.session.add(Account(id=self.account, balance=1))


@dataclass(frozen=True)
class BumpVersioned(Operation):
    """A change of an object with `version_id_col`."""

    async def run(self, to: Tools) -> None:
        """Add one."""
        found = await to.session.get(Versioned, "v")
        if found is not None:
            found.value += 1
            self.note(to, (found.value, found.version))


@dataclass(frozen=True)
class AddOrder(Operation):
    """`session.add` of an order with lines, and no flush."""

    name: str
    lines: int = 0

    async def run(self, to: Tools) -> None:
        """Add it under a name that no other operation uses."""
        name = f"{self.name}-{to.message}-{to.position}"
        to.session.add(Order(name=name, lines=[Line(what=f"line {number}") for number in range(self.lines)]))


@dataclass(frozen=True)
class AddAccount(Operation):
    """`session.add` of a row that nothing has to be asked for, and whose key another message may use, too."""

    fresh: str

    async def run(self, to: Tools) -> None:
        """Add it."""
        to.session.add(Account(id=self.fresh, balance=to.message))


@dataclass(frozen=True)
class AddReference(Operation):
    """`session.add` of a row that refers to an account that may not exist, or that another message adds.

    MariaDB checks that at once. Where COMMIT checks it, a later message of the unit may add the account.
    """

    where = frozenset({MARIADB})
    fresh: str

    async def run(self, to: Tools) -> None:
        """Add it."""
        to.session.add(Deferred(account=self.fresh))


@dataclass(frozen=True)
class AddAndRemember(Operation):
    """`session.add` of an object that something keeps."""

    async def run(self, to: Tools) -> None:
        """Add an account, and change it before the end."""
        added = Account(id=f"kept-{to.message}-{to.position}", balance=1)
        to.session.add(added)
        added.balance = 2
        to.side.kept.setdefault(to.message, []).append(added)


@dataclass(frozen=True)
class AddNamedOrder(Operation):
    """`session.add` of an order that may exist."""

    name: str

    async def run(self, to: Tools) -> None:
        """Add it unless it is there."""
        if await to.session.scalar(select(Order.name).where(Order.name == self.name)) is None:
            to.session.add(Order(name=self.name, total=to.message))
            self.note(to, "added")


@dataclass(frozen=True)
class AddAndFlush(Operation):
    """`session.add`, `flush`, and what the flush filled in."""

    async def run(self, to: Tools) -> None:
        """Add an order."""
        order = Order(name=f"flushed-{to.message}-{to.position}")
        to.session.add(order)
        await to.session.flush()
        self.note(to, (order.made_by, order.total, order.id > 0))


@dataclass(frozen=True)
class AddLine(Operation):
    """An append to a relationship."""

    name: str

    async def run(self, to: Tools) -> None:
        """Add a line to an order."""
        query = select(Order).where(Order.name == self.name).options(selectinload(Order.lines))
        order = await to.session.scalar(query)
        if order is not None:
            order.lines.append(Line(what=f"{to.message}-{to.position}"))
            self.note(to, len(order.lines))


@dataclass(frozen=True)
class RemoveLine(Operation):
    """The removal of an object from a relationship, which deletes it as an orphan."""

    name: str

    async def run(self, to: Tools) -> None:
        """Remove a line of an order."""
        query = select(Order).where(Order.name == self.name).options(selectinload(Order.lines))
        order = await to.session.scalar(query)
        if order is not None and order.lines:
            order.lines.remove(min(order.lines, key=lambda line: line.what))
            self.note(to, len(order.lines))


@dataclass(frozen=True)
class DeleteOrder(Operation):
    """`session.delete` with a cascade."""

    name: str

    async def run(self, to: Tools) -> None:
        """Delete an order and its lines."""
        query = select(Order).where(Order.name == self.name).options(selectinload(Order.lines))
        order = await to.session.scalar(query)
        if order is not None:
            await to.session.delete(order)


@dataclass(frozen=True)
class SetTag(Operation):
    """A change inside a JSON value."""

    name: str
    flagged: bool = True

    async def run(self, to: Tools) -> None:
        """Set a tag. Without `flag_modified` SQLAlchemy does not see the change."""
        order = await to.session.scalar(select(Order).where(Order.name == self.name))
        if order is not None:
            order.tags[f"m{to.message}"] = to.position
            if self.flagged:
                flag_modified(order, "tags")
            self.note(to, sorted(order.tags))


@dataclass(frozen=True)
class Flush(Operation):
    """`session.flush`."""

    async def run(self, to: Tools) -> None:
        """Write what is pending."""
        await to.session.flush()


@dataclass(frozen=True)
class BulkUpdate(Operation):
    """An UPDATE through the session."""

    amount: int
    synchronize: Any = "auto"

    async def run(self, to: Tools) -> None:
        """Add to all balances."""
        statement = update(Account).values(balance=Account.balance + self.amount)
        options = {"synchronize_session": self.synchronize}
        self.note(to, (await to.session.execute(statement, execution_options=options)).rowcount)


@dataclass(frozen=True)
class BulkInsert(Operation):
    """An INSERT of several rows through the session."""

    async def run(self, to: Tools) -> None:
        """Add two orders."""
        rows = [{"name": f"bulk-{to.message}-{to.position}-{number}"} for number in range(2)]
        await to.session.execute(insert(Order), rows)


@dataclass(frozen=True)
class BulkDelete(Operation):
    """A DELETE through the session."""

    name: str

    async def run(self, to: Tools) -> None:
        """Delete the lines of an order."""
        of_order = select(Order.id).where(Order.name == self.name).scalar_subquery()
        statement = delete(Line).where(Line.order_id == of_order)
        options = {"synchronize_session": "fetch"}
        self.note(to, (await to.session.execute(statement, execution_options=options)).rowcount)
