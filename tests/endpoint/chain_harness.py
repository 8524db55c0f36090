"""Two endpoints on documents of which one sends to the other, and empty places of every kind."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from redis.asyncio import Redis

from onceonly import Context, Endpoint, Off, message
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.assembly import open_store
from onceonly.assembly.deduplication import open_token_issuer, with_token
from onceonly.assembly.documents import open_documents
from onceonly.config.deduplication import Deduplication
from onceonly.endpoint.host import host_of
from onceonly.formats.entities import unit_of
from onceonly.model.entities import Entities
from onceonly.model.message import Message, Send
from onceonly.model.token import Token
from onceonly.ports.bundle import Ports
from onceonly.runtime.environment import SystemClock
from tests.servers.available import REDIS, need

KINDS = ("memory", "sqlite", "redis")
ACCOUNTS, AUDIT = "accounts", "audit"


def fresh_place(kind: str, folder: Path) -> str:
    """Return the URL of a place that is empty; `clean` removes what is in it at the end."""
    name = f"onceonly-test-{uuid4().hex}"
    if kind == "memory":
        return f"memory://{name}"
    return f"sqlite:///{folder}/{name}.db" if kind == "sqlite" else f"{need(REDIS)}/0?prefix={name}:"


async def clean(url: str) -> None:
    """Remove every key with the prefix of a Redis URL; nothing for other places."""
    if not url.startswith("redis"):
        return
    server, _, prefix = url.partition("?prefix=")
    async with Redis.from_url(server) as client:
        if keys := [key async for key in client.scan_iter(match=f"{prefix}*", count=1000)]:
            await client.delete(*keys)


@message("pay")
@dataclass
class Pay:
    """A command to `accounts`."""

    owner: str
    amount: int = 1


@message("paid")
@dataclass
class Paid:
    """A command to `audit`: what was in the account after a payment."""

    owner: str
    balance: int


@dataclass
class Account:
    """An entity of `accounts`."""

    owner: str
    balance: int = 0


@dataclass
class Book:
    """An entity of `audit`: the number of payments reported, and the last balance."""

    owner: str
    entries: int = 0
    balance: int = 0


def accounts(place: str, deduplication: Deduplication, *, transport: str, blobs: str | None = None) -> Endpoint:
    """Make an endpoint that adds up payments, and reports them to `audit`; with a place for blobs it stores a receipt."""
    made = Endpoint(ACCOUNTS, store=place, transport=transport, deduplication=deduplication, blobs=blobs)

    @made.handler(entity=Account, key="owner")
    async def pay(command: Pay, account: Account, context: Context) -> None:
        account.balance += command.amount
        if blobs:
            await context.blobs.create("receipt.txt", str(account.balance).encode())
        context.send(Paid(command.owner, account.balance), to=AUDIT)

    return made


def audit(place: str, deduplication: Deduplication, *, transport: str) -> Endpoint:
    """Make an endpoint that counts the payments that `accounts` reports."""
    made = Endpoint(AUDIT, store=place, transport=transport, deduplication=deduplication)

    @made.handler(entity=Book, key="owner")
    def heard(command: Paid, book: Book) -> None:
        book.entries += 1
        book.balance = max(book.balance, command.balance)

    return made


class Chain:
    """Both endpoints, open."""

    def __init__(self, accounts: Endpoint, audit: Endpoint, ports: Sequence[Ports]) -> None:
        self.accounts, self.audit = accounts, audit
        self.accounts_ports, self.audit_ports = ports

    async def send(self, *messages: Message) -> None:
        """Send commands to `accounts`, as a sender outside."""
        await self.accounts_ports.transport.send([Send(message=message, to=ACCOUNTS) for message in messages])

    async def send_with_tokens(self, *messages: Message) -> list[Message]:
        """Issue tokens, then send; gives the messages as they were sent."""
        stamped = [with_token(message) for message in messages]
        async with open_token_issuer(self.accounts.settings) as issuer:
            await issuer.add([Token(message.token, ACCOUNTS) for message in stamped])
        await self.send(*stamped)
        return stamped

    async def settle(self) -> BatchReport:
        """Deliver until nothing waits, six at once; gives what became of all."""
        report = BatchReport()
        for ports in (self.accounts_ports, self.audit_ports):
            while batch := await ports.transport.receive(6, 0):
                report += await deliver(batch, ports)
        return report


@asynccontextmanager
async def opened(accounts: Endpoint, audit: Endpoint) -> AsyncIterator[Chain]:
    """Open both."""
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(host_of(each).opened()) for each in (accounts, audit)]
        yield Chain(accounts, audit, ports)


def payments(count: int) -> list[Message]:
    """Make payments to two accounts, with ids of their own."""
    return [
        Message(id=f"m{number}", source="web", type="pay", body=b'{"owner":"%s"}' % (b"ann", b"bob")[number % 2])
        for number in range(count)
    ]


async def state(made: Endpoint, kind: str, key: str) -> Any:
    """Read an entity's state, by a store that asks nobody whether it may."""
    asking = replace(made.settings, deduplication=Off(), blobs=None)
    unit = unit_of(kind, key)
    async with open_store(asking, entities=True) as opened:
        probe = await opened.store.begin([Message(id="probe", source="test", type="", body=b"", unit=unit)])
        read = probe.resources.get(Entities).read(unit)  # type: ignore[attr-defined] # asked by its type
        probe.abandon()
    return None if read is None else msgspec.json.decode(read)


async def keys(url: str) -> list[str]:
    """List every document of a place."""
    async with open_documents(url, clock=SystemClock()) as documents:
        return list(await documents.keys("", limit=10_000))
