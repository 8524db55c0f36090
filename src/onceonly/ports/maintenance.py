"""Maintenance: the periodic tasks of an endpoint, which delete what is not needed any more."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, runtime_checkable

from onceonly.model.conversation import JournalEntry, JournalPart, JournalRun
from onceonly.model.health import ProcessReport, ProcessState
from onceonly.model.identity import Identity
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.model.minutes import NO_WORK, WorkHistory
from onceonly.ports.admission import TokenStore
from onceonly.ports.dead_letters import LetterIndex
from onceonly.ports.ring import Ring


class Counter(Protocol):
    """A number that outlives processes; several may add to it."""

    async def add(self, count: int) -> None:
        """Add to it, durably. Raises CommitFailed, OutcomeUnknown: after that it may have been added or not."""

    async def read(self) -> int:
        """Return it. Raises CommitFailed, OutcomeUnknown."""


class EventCounts(Protocol):
    """Numbers of events, by type, that outlive processes. Several processes may add to them."""

    async def add(self, counts: Mapping[str, int]) -> None:
        """Add to them, durably. Raises CommitFailed, OutcomeUnknown: after that they may have been added or not."""

    async def read(self) -> Mapping[str, int]:
        """Return them. Raises CommitFailed, OutcomeUnknown."""


class Sweeps(Protocol):
    """What attempts that were never committed left behind."""

    async def sweep(self, older_than: int, limit: int) -> int:
        """Remove some of what began before `older_than` (milliseconds since 1970); returns how much.

        Raises CommitFailed, OutcomeUnknown.
        """


@runtime_checkable
class Expires(Protocol):
    """A place where something expires that only this process removes."""

    async def remove_expired(self, limit: int = 1000) -> int:
        """Remove some of what has expired; returns how much, `limit` where there may be more.

        Raises CommitFailed, OutcomeUnknown.
        """


class ClientKeys(Protocol):
    """The keys of clients with the answers to them, of all endpoints of a database."""

    async def remove_keys(self, older_than: int, limit: int = 1000) -> int:
        """Remove some that were stored before `older_than` (milliseconds since 1970), `limit` at most; returns how many.

        `limit` means that there may be more. Rows that another process is removing are skipped. Raises CommitFailed,
        OutcomeUnknown.
        """


class Shrinks(Protocol):
    """A database with a log on this disk that grows, and does not shrink automatically."""

    async def shrink_log(self) -> int:
        """Return its disk space if it is large and not needed; returns how many logs were shrunk. Waits for no other process.

        Raises CommitFailed, OutcomeUnknown.
        """


class Leadership(Protocol):
    """Who of all processes is the leader just now."""

    def leading(self) -> AbstractAsyncContextManager[bool]:
        """Enclose the leader's work. Returns whether this is the one, at once. It ends with the process, however that ends."""


class Journals(Protocol):
    """The maintenance journal of one endpoint, which all processes see."""

    async def read(self) -> MaintenanceJournal | None:
        """Return it as it is; None before the first round. Raises CommitFailed, OutcomeUnknown."""

    async def write(self, journal: MaintenanceJournal) -> None:
        """Put this one in its place, durably. Raises CommitFailed, OutcomeUnknown."""

    async def longest_retention(self) -> int:
        """Return the longest retention, in milliseconds, of all endpoints whose clients' keys are kept together.

        Raises CommitFailed, OutcomeUnknown.
        """


class Backlog(NamedTuple):
    """What waits in the queue of an endpoint. `oldest` is its age in milliseconds, None if the broker cannot tell."""

    waiting: int
    oldest: int | None = None


class PresenceState(NamedTuple):
    """All that is known of the processes of an endpoint. `ended` is what those did in the last day that have ended."""

    processes: Sequence[ProcessState] = ()
    ended: WorkHistory = NO_WORK


class Presence(Protocol):
    """The processes that run one endpoint, which all processes see. It is for people, and may be late.

    One decision uses it: how long a message waits whose type no handler of a process takes.
    """

    async def report(self, report: ProcessReport) -> bool:
        """Put this report in place of the process's last one, and return whether it has none.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def remove(self, process: str, work: WorkHistory = NO_WORK) -> None:
        """Remove a process that ends, and add what it did to the history of ended processes, at once.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def remove_unseen(self, seconds: float) -> int:
        """Remove the processes whose last report is older, as `remove` does with what they reported. Return how many.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def read_all(self) -> PresenceState:
        """Return what `read` returns, and the history of ended processes, at the same cost.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def read(self) -> Sequence[ProcessState]:
        """Return up to 1,000 processes with the age of their reports, by name. Raises CommitFailed, OutcomeUnknown."""


class MessageJournal(Protocol):
    """What happened to the messages of one endpoint. For operators: no decision depends on it.

    Handled and sent messages are written by the units of its store. Coroutines raise CommitFailed, OutcomeUnknown.
    """

    @property
    def every(self) -> float:
        """Seconds after which `rotate` is due again."""

    def ran(self, identity: Identity, run: JournalRun | None) -> None:
        """Store how the handler ran, for the event that the message's unit is about to write. None to forget it."""

    async def add(self, entries: Sequence[JournalEntry]) -> None:
        """Write what happened outside of units, in a transaction of its own. A full journal takes nothing."""

    async def rotate(self) -> int:
        """Remove what is older than it has to be; returns how many tables were emptied."""

    async def conversation(self, key: bytes) -> JournalPart:
        """Return the events of a conversation, the oldest 1,000."""

    async def of_message(self, identity: Identity) -> JournalPart:
        """Return the events of one message, the oldest 1,000."""


class Maintenance(NamedTuple):
    """What one endpoint has to keep in order; nothing, unless its store or something next to it grows.

    `after` is how old, in seconds, something must be before it is taken for left behind. `tokens` may hold prepared ones.
    `drops` counts the messages that were dropped because no token of theirs was live. In `marks` a dedup store's marks expire,
    in `run_markers` those of runs whose message never came again.
    `letters` have actions that expire. The `ring` holds claims, `keys` those of clients, for `retention`
    milliseconds at least. A round is due every `interval` seconds; without `leads` it is left to other processes. Where there
    is no `leader`, several may work, which is harmless. `presence` has the processes that run the endpoint. `backlog`
    asks the broker what waits in its queue. `log` is a database's in a file.
    """

    after: float = 600.0
    tokens: TokenStore | None = None
    artifacts: Sweeps | None = None
    drops: Counter | None = None
    marks: Expires | None = None
    run_markers: Expires | None = None
    ring: Ring | None = None
    keys: ClientKeys | None = None
    leader: Leadership | None = None
    journals: Journals | None = None
    letters: LetterIndex | None = None
    presence: Presence | None = None
    backlog: Callable[[], Awaitable[Backlog | None]] | None = None
    message_journal: MessageJournal | None = None
    log: Shrinks | None = None
    interval: float = 60.0
    retention: int = 0
    leads: bool = True

    @property
    def has_tasks(self) -> bool:
        """Return whether there is anything to maintain from time to time."""
        stored = (self.tokens, self.artifacts, self.marks, self.run_markers, self.ring, self.keys, self.letters)
        return any(each is not None for each in (*stored, self.message_journal, self.log))


NOTHING = Maintenance()
