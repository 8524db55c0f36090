"""The ports of one endpoint, together: the one argument every algorithm takes."""

from typing import NamedTuple, Protocol

from onceonly.ports.admission import Admission
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.effects import Effects
from onceonly.ports.handlers import Handlers
from onceonly.ports.maintenance import NOTHING, Maintenance
from onceonly.ports.remote import RemoteRequests, Responders
from onceonly.ports.run_markers import NoRunMarkers, RunMarkers
from onceonly.ports.store import Fence, PendingRecords, Records, Store
from onceonly.ports.transactions import Controls, Transactions
from onceonly.ports.transport import Topology, Transport


class RelayPorts(NamedTuple):
    """The ports of a relay: those that finish, and what finds the records."""

    endpoint: str
    store: Records
    pending: PendingRecords
    admission: Admission
    effects: Effects
    transport: Transport


class Ports(NamedTuple):
    """Everything an endpoint's algorithm may talk to."""

    endpoint: str
    store: Store
    fence: Fence
    pending: PendingRecords | None
    """None with a store that cannot be searched, and where no record is kept."""
    handlers: Handlers
    admission: Admission
    effects: Effects
    transport: Transport
    dead_letters: DeadLetters
    maintenance: Maintenance = NOTHING
    transactions: Transactions | None = None
    """None with a store that has none."""
    controls: Controls | None = None
    """None with a store that can be searched for what a process left behind."""
    remote_requests: RemoteRequests | None = None
    responders: Responders | None = None
    """What other services may have executed here; None where an endpoint has no responders."""
    run_markers: RunMarkers = NoRunMarkers()
    declared: tuple[Topology, ...] = ()
    """What was declared when the endpoint was opened. A worker whose queue was deleted declares it again."""

    def for_relay(self) -> RelayPorts | None:
        """Return what a relay uses of these; None with a store that cannot be searched."""
        if self.pending is None:
            return None
        return RelayPorts(self.endpoint, self.store, self.pending, self.admission, self.effects, self.transport)


class FinishingPorts(Protocol):
    """The ports that finish what is committed: all of `Ports`, those of a relay, or only these."""

    @property
    def store(self) -> Records:
        """Where the records are."""

    @property
    def admission(self) -> Admission:
        """Receives dispatched records."""

    @property
    def effects(self) -> Effects:
        """What cleans up behind them."""

    @property
    def transport(self) -> Transport:
        """What takes the messages."""
