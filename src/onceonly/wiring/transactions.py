"""What transactions need: those of an endpoint's store, also in a process in which the endpoint does not run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

from onceonly.algorithms.effects import NoThings
from onceonly.algorithms.relay import relay
from onceonly.algorithms.transaction import Ways
from onceonly.model.errors import SetupError
from onceonly.model.record import Record
from onceonly.model.settings import History, Off
from onceonly.ports.admission import Admission
from onceonly.ports.bundle import Finishing
from onceonly.ports.effects import Effects
from onceonly.ports.store import Store
from onceonly.ports.transactions import Transactions
from onceonly.ports.transport import Transport
from onceonly.runtime.surroundings import LIVE, Surroundings
from onceonly.wiring.deduplication import open_admission
from onceonly.wiring.naming import named
from onceonly.wiring.schemes import has_no_tables, offer_of, scheme_of, shown
from onceonly.wiring.settings import Settings

_log = logging.getLogger("onceonly.transaction")


class _Finishing(NamedTuple):
    store: Store
    admission: Admission
    effects: Effects
    transport: Transport


class Outside:
    """The ways of transactions in a process in which the endpoint does not run; its transport is opened for each dispatch."""

    def __init__(self, settings: Settings, store: Store, ways: Ways, surroundings: Surroundings) -> None:
        self.ways = ways
        self._settings = settings
        self._store = store
        self._surroundings = surroundings

    async def dispatch(self, records: Sequence[Record]) -> None:
        """Send what is committed. What cannot be sent now is left to the relay of a process where the endpoint runs."""
        from onceonly.wiring import open_transport  # noqa: PLC0415 - which imports this module

        if not records:
            return
        async with left_to_the_relay(self._settings), AsyncExitStack() as stack:
            opening = open_transport(self._settings.transport, self._settings.name, surroundings=self._surroundings)
            transport = await stack.enter_async_context(opening)
            await relay(records, _Finishing(self._store, self.ways.admission, NoThings(), transport))


@asynccontextmanager
async def open_transactions(
    settings: Settings, *, entities: bool = False, surroundings: Surroundings = LIVE
) -> AsyncIterator[Transactions | None]:
    """Open the transactions of an endpoint's store; gives None where there are none. Raises SetupError."""
    is_memory = isinstance(settings.store, str) and scheme_of(settings.store) == "memory"
    is_plain = isinstance(settings.deduplication, History) and settings.blobs is None and not entities
    on_documents = not is_plain if is_memory else isinstance(settings.store, str) and has_no_tables(settings.store)
    if on_documents or isinstance(settings.deduplication, Off):
        yield None
        return
    if is_memory:
        from onceonly.wiring import memory as adapters  # noqa: PLC0415 - only when it is named
    else:
        from onceonly.wiring import sql as adapters  # type: ignore[no-redef]  # noqa: PLC0415 - imports a driver
    async with adapters.open_transactions(settings, clock=surroundings.clock) as transactions:
        yield transactions


@asynccontextmanager
async def outside(settings: Settings, *, surroundings: Surroundings = LIVE) -> AsyncIterator[Outside]:
    """Open what a transaction needs in a process in which the endpoint does not run. Raises SetupError, Failed, Unknown."""
    from onceonly.wiring import open_store  # noqa: PLC0415 - which imports this module

    async with AsyncExitStack() as stack:
        with named(settings, "store", settings.store):
            store, _ = await stack.enter_async_context(open_store(settings, surroundings=surroundings))
            transactions = await stack.enter_async_context(open_transactions(settings, surroundings=surroundings))
        deciding = await open_admission(stack, settings, surroundings)
        yield Outside(settings, store, Ways(required(transactions, settings), deciding.admission), surroundings)


def required(transactions: Transactions | None, settings: Settings) -> Transactions:
    """Give them, where there are any. Raises SetupError."""
    if transactions is not None:
        return transactions
    if isinstance(settings.deduplication, Off):
        raise SetupError(
            f"transactions of endpoint {settings.name!r} need deduplication=History() or another: with Off() no record is kept,"
            " so a crash would lose what they send"
        )
    raise SetupError(f"transactions need a SQL store; that of endpoint {settings.name!r} is {shown(settings.store)}")


@asynccontextmanager
async def left_to_the_relay(settings: Settings) -> AsyncIterator[None]:
    """Enclose a dispatch after a commit: whatever keeps it from ending, within `relay_after`, is no failure of what is done."""
    try:
        async with asyncio.timeout(settings.relay_after):
            yield
    except Exception as error:  # noqa: BLE001 - an outage, however a driver words it; the record is there
        reason = f"{type(error).__name__}: {error}"
        _log.warning(
            "committed, but not sent yet: that is left to the relay", extra={"endpoint": settings.name, "reason": reason}
        )


def session_of(store: object) -> type[Any] | None:
    """Give the class of a SQL store's sessions; None for another store. Imports SQLAlchemy, which is there by then."""
    for name in offer_of(store).asynchronous:
        module, _, attribute = name.rpartition(".")
        if attribute == "AsyncSession":
            found: type[Any] = getattr(import_module(module), attribute)
            return found
    return None


async def dispatch_within(records: Sequence[Record], ports: Finishing, settings: Settings) -> None:
    """Send what is committed on ports that are open."""
    if records:
        async with left_to_the_relay(settings):
            await relay(records, ports)
