"""An endpoint that writes two documents of the application with each entity, and ends itself at commands of its store.

`DOCUMENTS_DEATHS` is a file with a line for each death. Each process ends at the next of `MOMENTS`, until there are no more.
With `DOCUMENTS_CONTROL` the documents are written one after another instead of in one transaction.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pymongo import monitoring

from onceonly import Context, Endpoint, WorkerSettings
from onceonly.adapters.mongodb.documents import MongoDBDocuments
from onceonly.ports.documents import Change, DocumentWrite, Version

NAMES = ("insert", "update", "find", "commitTransaction", "commitTransaction")
MOMENTS = [(name, moment) for name in NAMES for moment in ("before", "after")]
"""Commands in transactions: before a process sends the second of these, or after it has the answer, the process ends."""


@dataclass
class Deposit:
    """A message."""

    account_id: str
    amount: int


@dataclass
class Account:
    """An entity."""

    account_id: str
    balance: int = 0
    handled: list[str] = field(default_factory=list)


@dataclass
class Total:
    """A document of the application, which all messages of an account change."""

    balance: int = 0
    count: int = 0


bank = Endpoint(
    "bank",
    store=os.environ["DOCUMENTS_STORE"],
    transport=os.environ["DOCUMENTS_TRANSPORT"],
    worker=WorkerSettings(max_concurrency=4),
)


@bank.handler(entity=Account, key="account_id")
async def deposit(message: Deposit, account: Account, context: Context) -> None:
    """Add it to the entity and to the total, and write a receipt."""
    account.balance += message.amount
    account.handled.append(context.message.id)
    total = await context.documents.get(account.account_id, Total, collection="totals") or Total()
    context.documents.put(account.account_id, Total(total.balance + message.amount, total.count + 1), collection="totals")
    context.documents.put(context.message.id, {"account": account.account_id, "amount": message.amount}, collection="receipts")


def _end(where: str) -> None:
    with Path(os.environ["DOCUMENTS_DEATHS"]).open("a") as deaths:
        deaths.write(f"{where}\n")
    os.kill(os.getpid(), signal.SIGKILL)


class _Ends(monitoring.CommandListener):
    """Ends the process at the second command of a name in its transactions."""

    def __init__(self, name: str, moment: str) -> None:
        self._name, self._moment = name, moment
        self._seen: list[int] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Note it."""
        if event.command_name == self._name and event.command.get("autocommit") is False:
            self._seen.append(event.request_id)
            self._end_at("before", event.request_id)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Look whether it is the one."""
        self._end_at("after", event.request_id)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Go on."""

    def _end_at(self, moment: str, request: int) -> None:
        if moment == self._moment and request in self._seen[1:]:
            _end(f"{self._moment} {self._name}")


def _deaths() -> int:
    file = Path(os.environ["DOCUMENTS_DEATHS"])
    return len(file.read_text().splitlines()) if file.exists() else 0


async def _one_after_another(self: MongoDBDocuments, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
    """Save what belongs together in two steps, and die between them."""
    (version,) = await self.save([change])
    if version is not None and _deaths() < len(MOMENTS):
        _end("between")
    for write in writes:
        await self._application._database[write.address.collection].replace_one(
            {"_id": write.address.key[0]}, {"written": True}, upsert=True
        )
    return version


if "DOCUMENTS_CONTROL" in os.environ:
    MongoDBDocuments.save_together = _one_after_another  # type: ignore[method-assign]
elif _deaths() < len(MOMENTS):
    monitoring.register(_Ends(*MOMENTS[_deaths()]))
