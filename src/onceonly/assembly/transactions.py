"""What transactions need: those of an endpoint's store, also in a process in which the endpoint does not run."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, NamedTuple

from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.relay import RelayResult, relay
from onceonly.algorithms.transaction import TransactionPorts
from onceonly.assembly import check_controls, open_own_transport
from onceonly.assembly.deduplication import open_admission
from onceonly.assembly.stores import errors_name_setting, open_store
from onceonly.config.deduplication import without_records
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError, error_text
from onceonly.model.record import Record
from onceonly.ports.admission import Admission
from onceonly.ports.bundle import FinishingPorts
from onceonly.ports.effects import Effects
from onceonly.ports.store import Records, Store
from onceonly.ports.transactions import Transactions
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.unmaintained import MaintenanceWatch

_log = EventLogger(logging.getLogger("onceonly.transaction"))


class EndpointTraits(NamedTuple):
    """What an endpoint has: any handlers at all, and such as work on entities."""

    handlers: bool = True
    entities: bool = False


ANYTHING = EndpointTraits()


class DispatchPorts(NamedTuple):
    """What sends the records of one endpoint, in a process that does not run it."""

    endpoint: str
    store: Records
    admission: Admission
    effects: Effects
    transport: Transport


class OutsideTransactions:
    """The ways of transactions in a process in which the endpoint does not run.

    Its transport is opened for each dispatch, where none is open already for control messages. `expect` is that of the store.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        ports: TransactionPorts,
        environment: Environment,
        *,
        expect: Callable[[float], None] | None = None,
    ) -> None:
        self.ports = ports
        self.expect = expect
        self._settings = settings
        self._store = store
        self._environment = environment

    async def dispatch(self, records: Sequence[Record]) -> bool:
        """Send what is committed; returns whether all of it was taken.

        What cannot be sent now is left to the relay of a process where the endpoint runs.
        """
        if not records:
            return True
        async with left_to_the_relay(self._settings), AsyncExitStack() as stack:
            transport = self.ports.transport
            if transport is None:
                opening = open_own_transport(self._settings, environment=self._environment)
                transport = await stack.enter_async_context(opening)
            ports = DispatchPorts(self._settings.name, self._store, self.ports.admission, NoArtifacts(), transport)
            return is_finished(await relay(records, ports), records)
        return False


@asynccontextmanager
async def outside(
    settings: Settings,
    has: EndpointTraits = ANYTHING,
    *,
    environment: Environment = LIVE,
    watch: MaintenanceWatch | None = None,
) -> AsyncIterator[OutsideTransactions]:
    """Open what a transaction needs in a process in which the endpoint does not run.

    After the block, a `watch` looks whether any process maintains the endpoint, if that is due. Raises SetupError,
    CommitFailed, OutcomeUnknown.
    """
    with errors_name_setting(settings, "store", settings.places.store):
        plan = settings.plan_store(entities=has.entities)
    if plan.has_controls:
        check_controls(settings)
        check_processed(settings, has)
    async with AsyncExitStack() as stack:
        with errors_name_setting(settings, "store", settings.places.store):
            opening = open_store(settings, entities=has.entities, environment=environment)
            parts = await stack.enter_async_context(opening)
        deciding = await open_admission(stack, settings, environment)
        ports = TransactionPorts(required(parts.transactions, settings), deciding.admission)
        if parts.controls is not None:
            with errors_name_setting(settings, "transport", settings.places.transport):
                opened = open_own_transport(settings, environment=environment)
                ports = ports._replace(controls=parts.controls, transport=await stack.enter_async_context(opened))
        yield OutsideTransactions(settings, parts.store, ports, environment, expect=parts.expect)
        if watch is not None and (parts.journals is not None or parts.ring is not None):
            await watch.look(parts.journals, parts.ring)


def watch_of(settings: Settings, environment: Environment) -> MaintenanceWatch:
    """Return what notices that an endpoint is not maintained, in a process without its janitor."""
    retention = round(settings.retention.total_seconds() * 1000) if settings.retention is not None else 0
    return MaintenanceWatch(settings.name, retention=retention, clock=environment.clock)


def check_processed(settings: Settings, has: EndpointTraits) -> None:
    """Check that one endpoint receives the control messages. Raises SetupError."""
    if has.handlers and settings.processed_by:
        raise SetupError(
            f"endpoint {settings.name!r} has handlers, so its own worker receives its control messages, and not that of "
            f"{settings.processed_by!r}: remove processed_by"
        )
    if not has.handlers and not settings.processed_by:
        raise SetupError(
            f"endpoint {settings.name!r} has no handlers, so no worker finishes its transactions if this "
            f"process dies: name an endpoint that runs on the same store ({settings.places.store}) and "
            'transport, control=ControlMessages(processed_by="...")'
        )


def required(transactions: Transactions | None, settings: Settings) -> Transactions:
    """Return the transactions, if there are any. Raises SetupError."""
    if transactions is not None:
        return transactions
    if not settings.plan.records:
        raise SetupError(
            f"transactions of endpoint {settings.name!r} cannot be used with "
            f"{without_records(settings.deduplication)}: a crash would lose their messages. Use History()"
        )
    raise SetupError(f"the store of endpoint {settings.name!r}, {settings.places.store}, does not support transactions")


@asynccontextmanager
async def left_to_the_relay(settings: Settings) -> AsyncIterator[None]:
    """Enclose a dispatch after a commit. The commit stands if the dispatch fails, or does not end within `relay_after`."""
    try:
        async with asyncio.timeout(settings.relay_after):
            yield
    except Exception as error:  # noqa: BLE001 - an outage, however a driver words it; the record is there
        reason = error_text(error)
        _log.warning(
            "transaction committed, sending will be retried",
            extra={"endpoint": settings.name, "reason": reason},
        )


def session_of(store: Location) -> type[Any] | None:
    """Return the class of a SQL store's sessions; None for another store. Imports SQLAlchemy, which is there by then."""
    for name in store.offer.asynchronous:
        module, _, attribute = name.rpartition(".")
        if attribute == "AsyncSession":
            found: type[Any] = getattr(import_module(module), attribute)
            return found
    return None


async def dispatch_within(records: Sequence[Record], ports: FinishingPorts, settings: Settings) -> bool:
    """Send what is committed through open ports; returns whether all of it was taken."""
    if not records:
        return True
    async with left_to_the_relay(settings):
        return is_finished(await relay(records, ports), records)
    return False


def is_finished(result: RelayResult, records: Sequence[Record]) -> bool:
    return len(result.finished) == len(records)
