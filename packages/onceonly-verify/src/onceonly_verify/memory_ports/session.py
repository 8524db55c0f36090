"""A transaction of the caller's own with a client's key in it, as `enlist(session, key=...)` takes it in a database.

The key is taken at once. Rows, records and answer go into the one commit, unless a savepoint that is rolled back takes them.
"""

from typing import Any

from onceonly.adapters.memory.store import Notebook
from onceonly.model.errors import KeyReused, OnceOnlyError
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt


class MemorySession:
    """One transaction of a caller's on the endpoint's database. `entry` is that of a key that was committed before."""

    def __init__(self, transactions: Any, opening: TransactionAttempt) -> None:
        self.entry: IdempotencyEntry | None = None
        self._transactions = transactions
        self._opening = opening
        self._opened: Any = None
        self._rows: list[tuple[str, str]] = []
        self._sends: list[Send] = []
        self._savepoints: list[tuple[bool, int, int]] = []

    async def enlist(self) -> bool:
        """Take the key, or read what is kept under it. Returns whether it is known. Raises KeyReused, as the port `open`."""
        found = await self._transactions.open(self._opening)
        if isinstance(found, IdempotencyEntry):
            if found.fingerprint != self._opening.fingerprint:
                raise KeyReused("this key was used for another request")
            self.entry = found
        else:
            self._opened = found
        return self.entry is not None

    def write(self, name: str, value: str) -> None:
        self._rows.append((name, value))

    def send(self, sends: tuple[Send, ...]) -> None:
        self._sends += sends

    def savepoint(self) -> None:
        self._savepoints.append((self._opened is not None, len(self._rows), len(self._sends)))

    def roll_back_savepoint(self) -> None:
        """Drop what was done since the last savepoint, also the key."""
        had_key, rows, sends = self._savepoints.pop()
        del self._rows[rows:]
        del self._sends[sends:]
        if self._opened is not None and not had_key:
            self._opened.abandon()
            self._opened = None

    def roll_back(self) -> None:
        """Drop everything. Harmless when nothing is open."""
        if self._opened is not None:
            self._opened.abandon()
            self._opened = None

    async def commit(self, answer: bytes) -> None:
        """Commit rows, records, key and answer in one step. The transaction is over, whatever comes of it."""
        opened, self._opened = self._opened, None
        notebook: Any = opened.resources.get(Notebook)
        for row in self._rows:
            notebook.write(*row)
        record = Record(self._opening.identity, tuple(self._sends)) if self._sends else None
        try:
            await opened.commit(record, answer)
        except OnceOnlyError:
            opened.abandon()
            raise
