"""What the tests of transactions on documents share: one endpoint in memory, whose clock is moved by hand."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from onceonly import (
    ControlMessages,
    Endpoint,
    Transaction,
)
from onceonly.algorithms.delivery import deliver
from onceonly.endpoint.host import host_of
from onceonly.formats.cloudevents import take_apart
from onceonly.ports.bundle import Ports
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly_conformance.clock import ManualClock
from tests.endpoint.harness import FixedRandomSource

QUICK = ControlMessages(delays=(timedelta(seconds=40), timedelta(seconds=50)), max_commit=timedelta(seconds=60))


@dataclass
class Account:
    """An entity: the key, and a balance."""

    account: str
    balance: int = 0


@dataclass
class Order:
    """An entity that has no fresh form."""

    id: str
    item: str


@dataclass
class Deposit:
    """A command about an account."""

    account: str
    amount: int = 1


@dataclass
class Paid:
    """An event, and a command to whoever takes it."""

    account: str


class SimulatedEndpoint:
    """One endpoint on documents in memory; the clock is moved by hand."""

    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.environment = Environment(clock=self.clock, random=FixedRandomSource())
        place = f"memory://{uuid4().hex}"
        self.bank = Endpoint("bank", **{"store": place, "transport": place, "control": QUICK} | settings)
        self.handled: list[str] = []
        self.ports: Ports

        @self.bank.handler(entity=Account, key="account")
        async def take(deposit: Deposit, account: Account) -> None:
            account.balance += deposit.amount
            self.handled.append(deposit.account)

    @asynccontextmanager
    async def opened(self, observer: Any = None) -> AsyncIterator[Endpoint]:
        """Open it, and a queue beside it."""
        async with host_of(self.bank).opened(environment=self.environment, observer=observer) as self.ports:
            await self.ports.transport.declare([Topology(endpoint="bank"), Topology(endpoint="sink")])
            yield self.bank

    async def received(self) -> list[str]:
        """Deliver all that is due; gives the types of what came, control messages among them."""
        types: list[str] = []
        while deliveries := await self.ports.transport.receive(100, 0):
            types += [take_apart(each.headers, each.body).attributes["type"] for each in deliveries]
            await deliver(deliveries, self.ports)
        return types

    async def pass_time(self, seconds: float) -> list[str]:
        """Let time pass, and deliver what is due then."""
        self.clock.advance(int(seconds * 1000))
        return await self.received()

    async def balance(self, key: str = "A") -> int:
        """Look at an account."""
        async with self.bank.transaction() as tx:
            return (await tx.entity(Account, key)).balance


async def deposit(tx: Transaction, amount: int = 1, key: str = "A") -> None:
    """Change an account, and send a command about another one."""
    account = await tx.entity(Account, key)
    account.balance += amount
    tx.send(Deposit("B"), to="bank")


async def pay(simulated: SimulatedEndpoint, amount: int = 1, **options: Any) -> None:
    """Make one transaction from beginning to end."""
    async with simulated.bank.transaction(**options) as tx:
        await deposit(tx, amount)
