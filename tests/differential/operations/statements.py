"""What handlers do on the connection and the driver's own connection, and what else happens while they run."""

from dataclasses import dataclass

from sqlalchemy import insert, select, update

from tests.differential.models import Account, Order
from tests.differential.operations.base import (
    SERVERS,
    Operation,
)
from tests.differential.tools import Tools


@dataclass(frozen=True)
class CoreRead(Operation):
    """A SELECT on the connection."""

    needs = "connection"
    account: str

    async def run(self, to: Tools) -> None:
        """Read a balance."""
        connection = await to.connection()
        self.note(to, await connection.scalar(select(Account.balance).where(Account.id == self.account)))


@dataclass(frozen=True)
class CoreReadOrders(Operation):
    """A SELECT of the names of orders on the connection."""

    needs = "connection"

    async def run(self, to: Tools) -> None:
        """Read all orders."""
        connection = await to.connection()
        found = await connection.execute(select(Order.name, Order.total, Order.made_by).order_by(Order.name))
        self.note(to, [tuple(row) for row in found])


@dataclass(frozen=True)
class CoreUpdate(Operation):
    """An UPDATE on the connection."""

    needs = "connection"
    account: str
    amount: int

    async def run(self, to: Tools) -> None:
        """Add to a balance in one statement."""
        statement = update(Account).where(Account.id == self.account).values(balance=Account.balance + self.amount)
        await (await to.connection()).execute(statement)


@dataclass(frozen=True)
class CoreReadAndWrite(Operation):
    """A SELECT and an UPDATE on the connection, as users write it who do not know locks."""

    needs = "connection"
    account: str

    async def run(self, to: Tools) -> None:
        """Write what was read, plus one."""
        connection = await to.connection()
        found = await connection.scalar(select(Account.balance).where(Account.id == self.account))
        if found is not None:
            await connection.execute(update(Account).where(Account.id == self.account).values(balance=found + 1))
            self.note(to, found)


@dataclass(frozen=True)
class CoreInsert(Operation):
    """An INSERT on the connection."""

    needs = "connection"

    async def run(self, to: Tools) -> None:
        """Insert an order."""
        await (await to.connection()).execute(insert(Order).values(name=f"core-{to.message}-{to.position}"))


@dataclass(frozen=True)
class DriverSql(Operation):
    """`exec_driver_sql` on the connection."""

    needs = "connection"
    account: str

    async def run(self, to: Tools) -> None:
        """Read and write a balance."""
        connection = await to.connection()
        of_account = f"diff_accounts WHERE id = '{self.account}'"
        self.note(to, (await connection.exec_driver_sql(f"SELECT balance FROM {of_account}")).scalar())  # noqa: S608 - our own
        await connection.exec_driver_sql(f"UPDATE diff_accounts SET balance = balance + 3 WHERE id = '{self.account}'")  # noqa: S608 - the same


@dataclass(frozen=True)
class DriverRead(Operation):
    """A SELECT on the driver's own connection."""

    needs = "driver"
    account: str

    async def run(self, to: Tools) -> None:
        """Read a balance, and the number of orders."""
        self.note(to, await to.ask_driver(f"SELECT balance FROM diff_accounts WHERE id = '{self.account}'"))  # noqa: S608 - our own
        self.note(to, await to.ask_driver("SELECT COUNT(*) FROM diff_orders"))


@dataclass(frozen=True)
class DriverUpdate(Operation):
    """An UPDATE on the driver's own connection."""

    needs = "driver"
    account: str

    async def run(self, to: Tools) -> None:
        """Add to a balance."""
        await to.ask_driver(f"UPDATE diff_accounts SET balance = balance + 4 WHERE id = '{self.account}'")  # noqa: S608 - our own


@dataclass(frozen=True)
class Outside(Operation):
    """Another connection adds to an account and commits, while the handler runs. SQLite has one writer at a time."""

    needs = "context"
    where = SERVERS
    account: str
    amount: int

    async def run(self, to: Tools) -> None:
        """Wait for it. It does nothing when the row is locked."""
        await to.commit_outside(self.account, self.amount)


@dataclass(frozen=True)
class Publish(Operation):
    """An event, with what the handler has read so far."""

    needs = "context"

    async def run(self, to: Tools) -> None:
        """Publish it."""
        to.publish((to.message, to.position, repr(to.run.reads)))


@dataclass(frozen=True)
class Tally(Operation):
    """The change of an entity. A handler without one does nothing."""

    needs = "context"

    async def run(self, to: Tools) -> None:
        """Add one."""
        if to.entity is not None:
            self.note(to, to.entity.count)
            to.entity.count += 1
