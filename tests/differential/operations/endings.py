"""Statements and objects that make a handler fail."""

from dataclasses import dataclass

from sqlalchemy import insert

from tests.differential.models import Account, Deferred, Order
from tests.differential.operations.base import (
    Operation,
)
from tests.differential.tools import Tools


@dataclass(frozen=True)
class BreakNow(Operation):
    """A statement that the database refuses, which the handler does not catch."""

    needs = "connection"

    async def run(self, to: Tools) -> None:
        """Insert an account that exists."""
        await (await to.connection()).execute(
            insert(Account).values([{"id": "same", "balance": 0}, {"id": "same", "balance": 1}])
        )


@dataclass(frozen=True)
class BreakInFlush(Operation):
    """An object that the flush at the end cannot write."""

    async def run(self, to: Tools) -> None:
        """Add two accounts with one key."""
        to.session.add(Order(name="one too many"))
        to.session.add(Order(name="one too many"))


@dataclass(frozen=True)
class BreakAtCommit(Operation):
    """A row that COMMIT refuses; on MariaDB the statement."""

    needs = "connection"

    async def run(self, to: Tools) -> None:
        """Refer to an account that does not exist."""
        await (await to.connection()).execute(insert(Deferred).values(account="nobody"))
