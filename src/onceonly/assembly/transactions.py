"""What transactions need: those of an endpoint's store, also in a process in which the endpoint does not run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.relay import relay
from onceonly.algorithms.transaction import TransactionPorts
from onceonly.assembly.deduplication import open_admission
from onceonly.assembly.naming import named
from onceonly.assembly.opened import OpenedFinishing
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.model.record import Record
from onceonly.ports.bundle import FinishingPorts
from onceonly.ports.store import Store
from onceonly.ports.transactions import Attempts, Controls, Transactions
from onceonly.runtime.environment import LIVE, Environment

_log = EventLogger(logging.getLogger("onceonly.transaction"))


class EndpointTraits(NamedTuple):
    """What an endpoint has: any handlers at all, and such as work on entities."""

    handlers: bool = True
    entities: bool = False


ANYTHING = EndpointTraits()


class OpenedTransactions(NamedTuple):
    """The transactions of a store; none where there are none. `controls` where it cannot be searched."""

    transactions: Transactions | None = None
    controls: Controls | None = None


class OutsideTransactions:
    """The ways of transactions in a process in which the endpoint does not run.

    Its transport is opened for each dispatch, where none is open already for control messages. `expect` is that of the store.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ways: TransactionPorts,
        environment: Environment,
        *,
        expect: Callable[[float], None] | None = None,
    ) -> None:
        self.ways = ways
        self.expect = expect
        self._settings = settings
        self._store = store
        self._surroundings = environment

    async def dispatch(self, records: Sequence[Record]) -> None:
        """Send what is committed. What cannot be sent now is left to the relay of a process where the endpoint runs."""
        from onceonly.assembly import open_transport  # noqa: PLC0415 - which imports this module

        if not records:
            return
        async with left_to_the_relay(self._settings), AsyncExitStack() as stack:
            transport = self.ways.transport
            if transport is None:
                opening = open_transport(self._settings.places.transport, self._settings.name, environment=self._surroundings)
                transport = await stack.enter_async_context(opening)
            await relay(
                records, OpenedFinishing(self._settings.name, self._store, self.ways.admission, NoArtifacts(), transport)
            )


@asynccontextmanager
async def open_transactions(
    settings: Settings, *, entities: bool = False, environment: Environment = LIVE
) -> AsyncIterator[OpenedTransactions]:
    """Open the transactions of an endpoint's store, if it has any. Raises SetupError."""
    is_memory = settings.places.store.in_process
    if not settings.plan.records:
        yield OpenedTransactions()
        return
    if settings.keeps_documents(entities=entities):
        if problem := settings.control_problem(entities=entities):  # which only handlers of entities bring about
            raise SetupError(problem)
        family = import_module(f"onceonly.assembly.{'memory' if is_memory else 'documents'}")
        async with family.open_transactions_on_documents(settings, clock=environment.clock) as transactions:
            yield OpenedTransactions(transactions, _controls(transactions, settings, environment))
        return
    if is_memory:
        from onceonly.assembly import memory as adapters  # noqa: PLC0415 - only when it is named
    else:
        from onceonly.assembly import sql as adapters  # type: ignore[no-redef]  # noqa: PLC0415 - imports a driver
    async with adapters.open_transactions(settings, clock=environment.clock) as transactions:
        yield OpenedTransactions(transactions)


def _controls(attempts: Attempts, settings: Settings, environment: Environment) -> Controls:
    chosen = settings.control
    delays = tuple(delay // timedelta(milliseconds=1) for delay in chosen.delays)
    return Controls(attempts, delays, chosen.processed_by or settings.name, environment.clock)


@asynccontextmanager
async def outside(
    settings: Settings, has: EndpointTraits = ANYTHING, *, environment: Environment = LIVE
) -> AsyncIterator[OutsideTransactions]:
    """Open what a transaction needs in a process in which the endpoint does not run.

    Raises SetupError, CommitFailed, OutcomeUnknown.
    """
    from onceonly.assembly import open_store, open_transport  # noqa: PLC0415 - which imports this module

    if settings.keeps_documents(entities=has.entities):
        check_processed(settings, has)
    async with AsyncExitStack() as stack:
        with named(settings, "store", settings.places.store):
            opening = open_store(settings, entities=has.entities, environment=environment)
            store = await stack.enter_async_context(opening)
            begun = open_transactions(settings, entities=has.entities, environment=environment)
            transactions, controls = await stack.enter_async_context(begun)
        deciding = await open_admission(stack, settings, environment)
        ways = TransactionPorts(required(transactions, settings), deciding.admission)
        if controls is not None:
            with named(settings, "transport", settings.places.transport):
                opened = open_transport(settings.places.transport, settings.name, environment=environment)
                ways = ways._replace(controls=controls, transport=await stack.enter_async_context(opened))
        yield OutsideTransactions(settings, store.store, ways, environment, expect=store.expect)


def check_processed(settings: Settings, has: EndpointTraits) -> None:
    """Check that an endpoint receives the control messages. Raises SetupError."""
    if not has.handlers and not settings.control.processed_by:
        raise SetupError(
            f"endpoint {settings.name!r} has no handlers, so no worker finishes its transactions if this "
            f"process dies: name an endpoint that runs on the same store ({settings.places.store}) and "
            'transport, control=ControlMessages(processed_by="...")'
        )


def required(transactions: Transactions | None, settings: Settings) -> Transactions:
    """Give them, where there are any. Raises SetupError."""
    if transactions is not None:
        return transactions
    if not settings.plan.records:
        raise SetupError(
            f"transactions of endpoint {settings.name!r} cannot be used with deduplication=Off(), which "
            "stores no records: a crash would lose their messages. Use History()"
        )
    raise SetupError(f"the store of endpoint {settings.name!r}, {settings.places.store}, does not support transactions")


@asynccontextmanager
async def left_to_the_relay(settings: Settings) -> AsyncIterator[None]:
    """Enclose a dispatch after a commit. The commit stands if the dispatch fails, or does not end within `relay_after`."""
    try:
        async with asyncio.timeout(settings.relay_after):
            yield
    except Exception as error:  # noqa: BLE001 - an outage, however a driver words it; the record is there
        reason = f"{type(error).__name__}: {error}"
        _log.warning(
            "transaction committed, sending will be retried",
            extra={"endpoint": settings.name, "reason": reason},
        )


def session_of(store: Location) -> type[Any] | None:
    """Give the class of a SQL store's sessions; None for another store. Imports SQLAlchemy, which is there by then."""
    for name in store.offer.asynchronous:
        module, _, attribute = name.rpartition(".")
        if attribute == "AsyncSession":
            found: type[Any] = getattr(import_module(module), attribute)
            return found
    return None


async def dispatch_within(records: Sequence[Record], ports: FinishingPorts, settings: Settings) -> None:
    """Send what is committed on ports that are open."""
    if records:
        async with left_to_the_relay(settings):
            await relay(records, ports)
