"""The parts of an open store, and of an open way to deduplicate."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from onceonly.config.endpoint import Settings
from onceonly.model.ring import Bucketing
from onceonly.ports.admission import Admission, TokenStore
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.effects import Register
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import (
    ClientKeys,
    Counter,
    EventCounts,
    Expires,
    Journals,
    Leadership,
    MessageJournal,
    Presence,
    Shrinks,
)
from onceonly.ports.operators import Lookup
from onceonly.ports.remote import RemoteRequests
from onceonly.ports.ring import Ring
from onceonly.ports.run_markers import RunMarkers
from onceonly.ports.store import Fence, PendingRecords, Store
from onceonly.ports.transactions import Attempts, Controls, Transactions
from onceonly.runtime.maintenance.counts import TakesCounts


class StoredShadow(NamedTuple):
    """What a store in shadow mode counts, and where the counts are stored."""

    counting: TakesCounts
    stored: EventCounts


class StoreParts(NamedTuple):
    """A store, its fence, the dead letters next to it, and the register of artifacts that its commits take rows away from.

    `pending` is there where its records can be searched, `register` where it has one. `ring` is there where the store's own
    claims are the history, and are forgotten in time. The others are what its janitors share, as far as the store can have it:
    `keys` of clients, the `leader` among them, and their `journals`. `expect` takes the number of seconds that a unit may be
    without a statement.
    """

    store: Store
    fence: Fence
    pending: PendingRecords | None
    dead_letters: DeadLetters
    register: Register | None = None
    ring: Ring | None = None
    keys: ClientKeys | None = None
    leader: Leadership | None = None
    journals: Journals | None = None
    expect: Callable[[float], None] | None = None
    run_markers: Callable[[float], RunMarkers] | None = None
    """Makes the record of runs, given for how many seconds a run may last."""
    old_run_markers: Expires | None = None
    """Removes the records of runs whose message never came again."""
    unsubscribed: EventCounts | None = None
    """Counts events that had no subscriber."""
    left: PendingRecords | None = None
    """Finds the records that an earlier setting left, where this one sends none."""
    shadow: StoredShadow | None = None
    """Counts what was handled in shadow mode."""
    lookup: Lookup | None = None
    """Reads what is known about messages, for operators."""
    presence: Presence | None = None
    """The processes that run the endpoint, unless `presence=False`."""
    message_journal: MessageJournal | None = None
    """What happened to messages, if the endpoint has `journal=`."""
    log: Shrinks | None = None
    """The database in a file, whose log maintenance shrinks."""
    transactions: Transactions | None = None
    """None where no records are stored."""
    controls: Controls | None = None
    """How control messages finish transactions, unless only a relay does."""
    open_remote_requests: Callable[[], Awaitable[RemoteRequests]] | None = None
    """Opens the requests of other services, if the store can hold them. Raises SetupError."""
    isolate: Callable[[Mapping[str, str]], None] | None = None
    """Sets the isolation levels of units of one message, by message type. Raises SetupError for an unknown level."""
    working_on: Callable[[Any], Store] | None = None
    """Makes a store whose units work in transactions of a host, which the given `UnitOpener` opens."""


def controls_of(settings: Settings, attempts: Attempts, clock: Clock) -> Controls:
    """Return how the control messages of an endpoint travel, and where its attempts are looked up."""
    chosen = settings.chosen_control
    delays = tuple(delay // timedelta(milliseconds=1) for delay in chosen.delays)
    return Controls(attempts, delays, chosen.processed_by or settings.name, clock)


class BucketClock(NamedTuple):
    """How time is cut where an endpoint claims now, and what the database's clock says: milliseconds since 1970.

    `latest` is how it is cut where the endpoint claims at last: after a change of its retention, once that takes effect.
    """

    bucketing: Bucketing
    now: int
    latest: Bucketing


class AdmissionParts(NamedTuple):
    """What decides beyond the store's claims; tokens elsewhere, which are swept; what counts those without one; old marks."""

    admission: Admission
    tokens: TokenStore | None = None
    drops: Counter | None = None
    marks: Expires | None = None
