"""A bank whose deposits change an account and two documents of the application, in a process that kills itself.

`python -m tests.faults.together_program POINT TIMES` works, and is killed at the crash point POINT when it comes there for the
TIMES-th time. "during-commit" is at some moment of the commit. With TOGETHER_APART=1 the documents are written by a client of
their own, before the commit: the control.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import SystemRandom
from threading import Timer
from uuid import uuid4

import msgspec

from onceonly import Context, Endpoint
from onceonly.assembly.documents import open_documents
from onceonly.config.location import locate
from onceonly.endpoint.host import host_of
from onceonly.formats.partitions import PlacedKey, join_key
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite, SavesTogether
from onceonly.runtime.environment import SystemClock
from onceonly.runtime.observe.observer import PortCall

STORE, TRANSPORT, APART = "TOGETHER_STORE", "TOGETHER_TRANSPORT", "TOGETHER_APART"
_COMMIT_SECONDS = 0.02


@dataclass
class Deposit:
    """A command."""

    account_id: str
    number: int


@dataclass
class Account:
    """An entity."""

    account_id: str
    deposits: int = 0


def is_partitioned(store: str) -> bool:
    """Tell whether documents of the application are in partitions of this store."""
    return store.startswith("azure-table:")


def account_key(store: str, account: str) -> str:
    """Return the key of the document of an account."""
    return join_key(PlacedKey((f"bank-{account}",) if is_partitioned(store) else (), f"entity/Account/{account}"))


def total_of(account: str) -> str:
    """Return the key of the document that counts the deposits of an account."""
    return f"total-{account}"


def receipt_of(deposit: Deposit) -> str:
    """Return the key of the document of a deposit: its number says how often it was written."""
    return f"receipt-{deposit.account_id}-{deposit.number}"


def bank(store: str, transport: str, *, apart: bool) -> Endpoint:
    """Make the endpoint."""
    endpoint = Endpoint("bank", store=store, transport=transport)
    partition = {"partition_key": lambda deposit: f"bank-{deposit.account_id}"} if is_partitioned(store) else {}

    @endpoint.handler(entity=Account, key="account_id", **partition)
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.deposits += 1
        if apart:
            await write_apart(store, message)
            return
        for key in (total_of(message.account_id), receipt_of(message)):
            found = await context.documents.get(key) or {"count": 0}
            context.documents.put(key, {"count": found["count"] + 1})

    return endpoint


async def write_apart(store: str, message: Deposit) -> None:
    """Write the documents of a deposit without its account."""
    async with open_documents(locate(store, "store"), clock=SystemClock()) as documents:
        assert isinstance(documents, SavesTogether)
        near = account_key(store, message.account_id)
        change = Change(key=near.replace("entity/", "message/", 1) + uuid4().hex, body=b"{}")
        addresses = [DocumentAddress("", (key,)) for key in (total_of(message.account_id), receipt_of(message))]
        while True:
            found = await documents.read(near, addresses)
            writes = [
                DocumentWrite(
                    address=each,
                    body=b'{"count":%d}' % (1 + (msgspec.json.decode(found[each].body)["count"] if each in found else 0)),
                    expected=found[each].version if each in found else "",
                )
                for each in addresses
            ]
            if await documents.save_together(change, writes) is not None:
                return


class Killer:
    """An observer that kills this process at a crash point."""

    def __init__(self, point: str, times: int) -> None:
        self._point, self._left = point, times

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Die before the call, in it, or after it."""
        self._reach(f"before-{call.point}")
        if self._counts(f"during-{call.point}"):
            Timer(SystemRandom().uniform(0, _COMMIT_SECONDS), _die).start()
        yield
        self._reach(f"after-{call.point}")

    def _reach(self, point: str) -> None:
        if self._counts(point):
            _die()

    def _counts(self, point: str) -> bool:
        self._left -= point == self._point
        return point == self._point and not self._left


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(point: str, times: int) -> None:
    """Work until killed."""
    endpoint = bank(os.environ[STORE], os.environ[TRANSPORT], apart=os.environ.get(APART) == "1")
    async with host_of(endpoint).running(observer=Killer(point, times)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
