"""Transactions, and requests of other services, whose every call is enclosed by an observer."""

from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.remote import Request
from onceonly.model.transaction import Kept, Opening
from onceonly.ports.remote import Calls, OpenCall
from onceonly.ports.store import Resources
from onceonly.ports.transactions import Attempts, Controls, OpenTransaction, Transactions
from onceonly.runtime.observe.observer import Call, Observer, Point


def observed_transactions(transactions: Transactions | None, endpoint: str, observer: Observer) -> Transactions | None:
    """Give transactions that do the same, observed; None of none."""
    return None if transactions is None else ObservedTransactions(transactions, endpoint, observer)


def observed_calls(calls: Calls | None, endpoint: str, observer: Observer) -> Calls | None:
    """Give what keeps requests, observed; None of none."""
    return None if calls is None else ObservedCalls(calls, endpoint, observer)


def observed_controls(controls: Controls | None, endpoint: str, observer: Observer) -> Controls | None:
    """Give controls whose attempts are observed; None of none."""
    return None if controls is None else controls._replace(attempts=ObservedAttempts(controls.attempts, endpoint, observer))


class ObservedAttempts:
    """Attempts of which every call is observed."""

    def __init__(self, attempts: Attempts, endpoint: str, observer: Observer) -> None:
        """Enclose these."""
        self._attempts, self._endpoint, self._observer = attempts, endpoint, observer

    async def kept(self, key: str, endpoint: str) -> Kept | None:
        """Observe `kept`."""
        call = Call(Point.KEPT, self._endpoint)
        async with self._observer.around(call):
            call.result = kept = await self._attempts.kept(key, endpoint)
        return kept

    async def record(self, identity: Identity, unit: str) -> Record | None:
        """Observe `record`."""
        call = Call(Point.RECORD, self._endpoint, (identity,))
        async with self._observer.around(call):
            call.result = record = await self._attempts.record(identity, unit)
        return record

    async def bury(self, identity: Identity, unit: str) -> None:
        """Observe `bury`."""
        async with self._observer.around(Call(Point.BURY, self._endpoint, (identity,))):
            await self._attempts.bury(identity, unit)


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
        self.unit = opened.unit
        self._opened, self._endpoint, self._observer = opened, endpoint, observer

    async def load(self, unit: str) -> None:
        """Pass through: a read, which tells where the record will be."""
        await self._opened.load(unit)
        self.unit = self._opened.unit

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Observe `commit`."""
        async with self._observer.around(Call(Point.COMMIT, self._endpoint, () if record is None else (record,))):
            await self._opened.commit(record, answer)

    def abandon(self) -> None:
        """Pass through: it awaits nothing, and nothing of it is ever seen."""
        self._opened.abandon()


class ObservedCalls:
    """What keeps requests, its calls observed."""

    def __init__(self, calls: Calls, endpoint: str, observer: Observer) -> None:
        """Enclose these."""
        self._calls, self._endpoint, self._observer = calls, endpoint, observer

    async def put(self, key: str, request: Request, until: int) -> bool:
        """Observe `put`."""
        call = Call(Point.REQUEST_PUT, self._endpoint)
        async with self._observer.around(call):
            call.result = taken = await self._calls.put(key, request, until)
        return taken

    async def open(self, opening: Opening) -> OpenCall | Kept:
        """Observe `open`; the commit of what it opens is observed as well."""
        call = Call(Point.REQUEST_OPEN, self._endpoint, (opening,))
        opened: OpenCall | Kept | None = None
        try:
            async with self._observer.around(call):
                call.result = opened = await self._calls.open(opening)
        except BaseException:
            if opened is not None and not isinstance(opened, Kept):
                opened.abandon()  # the observer raised: nobody else knows this unit
            raise
        return opened if isinstance(opened, Kept) else ObservedCall(opened, self._endpoint, self._observer)

    async def kept(self, key: str) -> Kept | None:
        """Observe `kept`."""
        call = Call(Point.KEPT, self._endpoint)
        async with self._observer.around(call):
            call.result = kept = await self._calls.kept(key)
        return kept

    async def bury(self, key: str, until: int) -> None:
        """Observe `bury`."""
        async with self._observer.around(Call(Point.REQUEST_BURY, self._endpoint)):
            await self._calls.bury(key, until)

    async def remove(self, key: str) -> None:
        """Observe `remove`."""
        async with self._observer.around(Call(Point.REQUEST_REMOVE, self._endpoint)):
            await self._calls.remove(key)


class ObservedCall:
    """A request that is being executed, its commit observed; the resources are its own."""

    def __init__(self, opened: OpenCall, endpoint: str, observer: Observer) -> None:
        """Enclose this one."""
        self.resources: Resources = opened.resources
        self._opened, self._endpoint, self._observer = opened, endpoint, observer

    async def request(self) -> Request | None:
        """Pass through."""
        return await self._opened.request()

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        """Observe `commit`."""
        async with self._observer.around(Call(Point.COMMIT, self._endpoint, () if record is None else (record,))):
            await self._opened.commit(record, answer)

    def abandon(self) -> None:
        """Pass through: it awaits nothing, and nothing of it is ever seen."""
        self._opened.abandon()
