"""Transactions whose every call is enclosed by an observer."""

from onceonly.model.record import Record
from onceonly.model.transaction import Kept, Opening
from onceonly.ports.store import Resources
from onceonly.ports.transactions import OpenTransaction, Transactions
from onceonly.runtime.observer import Call, Observer, Point


def observed_transactions(transactions: Transactions | None, endpoint: str, observer: Observer) -> Transactions | None:
    """Give transactions that do the same, observed; None of none."""
    return None if transactions is None else ObservedTransactions(transactions, endpoint, observer)


class ObservedTransactions:
    """Transactions whose calls, and those of each that is open, are observed."""

    def __init__(self, transactions: Transactions, endpoint: str, observer: Observer) -> None:
        """Enclose these."""
        self._transactions, self._endpoint, self._observer = transactions, endpoint, observer

    async def open(self, opening: Opening) -> OpenTransaction | Kept:
        """Observe `open`; the commit of what it opens is observed as well."""
        call = Call(Point.OPEN, self._endpoint, (opening,))
        opened: OpenTransaction | Kept | None = None
        try:
            async with self._observer.around(call):
                call.result = opened = await self._transactions.open(opening)
        except BaseException:
            if opened is not None and not isinstance(opened, Kept):
                opened.abandon()  # the observer raised: nobody else knows this transaction
            raise
        return opened if isinstance(opened, Kept) else ObservedTransaction(opened, self._endpoint, self._observer)

    async def kept(self, key: str) -> Kept | None:
        """Observe `kept`."""
        call = Call(Point.KEPT, self._endpoint)
        async with self._observer.around(call):
            call.result = kept = await self._transactions.kept(key)
        return kept


class ObservedTransaction:
    """An open transaction whose commit is observed; the resources are its own."""

    def __init__(self, opened: OpenTransaction, endpoint: str, observer: Observer) -> None:
        """Enclose this one."""
        self.resources: Resources = opened.resources
        self._opened, self._endpoint, self._observer = opened, endpoint, observer

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Observe `commit`."""
        async with self._observer.around(Call(Point.COMMIT, self._endpoint, () if record is None else (record,))):
            await self._opened.commit(record, answer)

    def abandon(self) -> None:
        """Pass through: it awaits nothing, and nothing of it is ever seen."""
        self._opened.abandon()
