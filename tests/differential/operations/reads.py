"""What handlers read through the ORM."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import selectinload

from tests.differential.models import Account, Audit, Line, Order
from tests.differential.operations.base import (
    Operation,
)
from tests.differential.tools import Tools, lines_of


@dataclass(frozen=True)
class Get(Operation):
    """`session.get`."""

    account: str

    async def run(self, to: Tools) -> None:
        """Read one balance."""
        found = await to.session.get(Account, self.account)
        self.note(to, found and found.balance)


@dataclass(frozen=True)
class GetPopulated(Operation):
    """`session.get` with `populate_existing`."""

    account: str

    async def run(self, to: Tools) -> None:
        """Read one balance."""
        found = await to.session.get(Account, self.account, populate_existing=True)
        self.note(to, found and found.balance)


@dataclass(frozen=True)
class SelectAll(Operation):
    """A SELECT of all accounts."""

    populate: bool = False

    async def run(self, to: Tools) -> None:
        """Read all balances."""
        query = select(Account).order_by(Account.id)
        if self.populate:
            query = query.execution_options(populate_existing=True)
        self.note(to, [(each.id, each.balance) for each in await to.session.scalars(query)])


@dataclass(frozen=True)
class Count(Operation):
    """A SELECT that reads no object."""

    async def run(self, to: Tools) -> None:
        """Count orders, lines and audits."""
        for kind in (Order, Line, Audit):
            self.note(to, await to.session.scalar(select(func.count()).select_from(kind)))


@dataclass(frozen=True)
class ReadOrder(Operation):
    """A SELECT with `selectinload`."""

    name: str

    async def run(self, to: Tools) -> None:
        """Read an order and its lines."""
        query = select(Order).where(Order.name == self.name).options(selectinload(Order.lines))
        order = await to.session.scalar(query)
        if order is None:
            self.note(to, None)
        else:
            self.note(to, (order.total, order.made_by, order.tags, sorted(line.what for line in order.lines)))


@dataclass(frozen=True)
class LoadLines(Operation):
    """A lazy load of a relationship."""

    name: str

    async def run(self, to: Tools) -> None:
        """Read the lines of an order."""
        order = await to.session.scalar(select(Order).where(Order.name == self.name))
        if order is not None:
            self.note(to, sorted(line.what for line in await lines_of(order, to)))


@dataclass(frozen=True)
class Refresh(Operation):
    """`session.refresh`, with or without a lock."""

    account: str
    lock: bool = False

    async def run(self, to: Tools) -> None:
        """Read a balance twice."""
        found = await to.session.get(Account, self.account)
        if found is not None:
            await to.session.refresh(found, with_for_update=self.lock or None)
            self.note(to, found.balance)


@dataclass(frozen=True)
class SumWithoutAutoflush(Operation):
    """A SELECT in `no_autoflush`, after a change."""

    account: str

    async def run(self, to: Tools) -> None:
        """Read the sum of all balances as the database has it."""
        found = await to.session.get(Account, self.account)
        if found is not None:
            found.balance += 1
        with to.session.no_autoflush:
            self.note(to, await to.session.scalar(select(func.sum(Account.balance))))
