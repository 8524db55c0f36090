"""The numbers of an endpoint: its queue, pending records, dead letters, tokens, marks, open attempts, and maintenance."""

import re
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, structs

from onceonly.assembly import open_dead_letters, open_read_only, open_transport
from onceonly.assembly.deduplication import count_live
from onceonly.assembly.document_places import open_documents
from onceonly.assembly.document_tokens import drops_of
from onceonly.assembly.stored_retention import configured, keeps_claims
from onceonly.assembly.stores import read_only, refuse_missing
from onceonly.cli.retention import find
from onceonly.cli.targets import connection_errors
from onceonly.config.destinations import shown_events
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.changed_retention import as_duration
from onceonly.model.errors import OnceOnlyError, QueueMissing, RetryableError, SchemaMissing, SetupError
from onceonly.model.health import ProcessState
from onceonly.model.maintenance_journal import MaintenanceJournal, TaskRun
from onceonly.model.wording import in_words
from onceonly.operations.overview import COUNTED, age_of_oldest
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, ListsSubscriptions, Topology, Transport
from onceonly.runtime.environment import LIVE
from onceonly.runtime.maintenance.tasks import late_buckets

MOST = 1000
"""Documents are listed up to here: some services are paid by the page."""


class MaintenanceState(Struct, frozen=True, kw_only=True):
    """How an endpoint's janitor is. `state` is "ok", "failing", "overdue" or "never"; `age` is for how many seconds it rests.

    `troubles` describes what is wrong; `tasks` how each of them went last.
    """

    state: str
    age: int | None = None
    troubles: tuple[str, ...] = ()
    tasks: dict[str, TaskRun] = {}

    def in_words(self) -> str:
        return self.state if self.age is None else f"{self.state}, {in_words(self.age)} ago"


class Status(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One endpoint's numbers. The first three are those of its queue, None when it has none yet.

    `late` are the records that wait for longer than `relay_after`; `oldest` is the age of the oldest one, in seconds: these are
    None where the store cannot be searched. The numbers behind the dead letters are left out where they do not exist:
    what came without a live token, tokens of messages to it that are prepared and live, marks in its dedup store (of all who
    use it), and attempts at artifacts that are open. `more` names those that were not counted to the end.
    `wake_up` is how a queue in PostgreSQL notices what other processes send: "notifications", or "polling" behind a pooler.
    `superfluous` are subscriptions to types that it does not handle as events. RabbitMQ lists its subscriptions only with the
    option `management` in the URL.
    `problem` is what is wrong with its handlers, so that it does not start, or why its subscriptions are unknown.
    `unsubscribed` has the numbers of events that it published and that had no subscriber, by type.
    `shadow` has the numbers of messages that shadow mode handled and `History` would not, by what it would have done.
    `late_buckets` are buckets of claims that are not rotated, and `janitor` is how the janitor is; where there is one.
    `processes` are those that run it, where they report to the store.
    `retention` is for how long its claims are kept, in words, with what its code says where that is another time.
    `unread` has the reasons why numbers are missing, such as a broker that does not answer. Those numbers are None, and the
    other ones are there.
    `destinations` are where its events go that do not go to their subscribers, by type; under "*" if a function decides.
    """

    endpoint: str
    waiting: int | None
    held: int | None
    delayed: int | None
    records: int | None
    late: int | None
    oldest: int | None
    dead_letters: int | None
    wake_up: str | None = None
    superfluous: tuple[str, ...] = ()
    unsubscribed: dict[str, int] | None = None
    shadow: dict[str, int] | None = None
    dropped: int | None = None
    prepared: int | None = None
    live: int | None = None
    marks: int | None = None
    attempts: int | None = None
    late_buckets: int | None = None
    janitor: MaintenanceState | None = None
    processes: tuple[ProcessState, ...] | None = None
    retention: str | None = None
    more: tuple[str, ...] = ()
    problem: str = ""
    unread: tuple[str, ...] = ()
    destinations: dict[str, str] = {}


async def read_status(settings: Settings, topology: Topology, problem: str) -> Status:
    """Read the numbers. `problem` is what is wrong with the handlers.

    Each part is read by itself: what does not answer is named in `unread`. Raises SetupError, which names the endpoint;
    CommitFailed, OutcomeUnknown if a part does not answer and the set-up of another one is wrong.
    """
    try:
        return await _read_status(settings, topology, problem)
    except SetupError as error:
        raise type(error)(f"endpoint {settings.name!r}: {error}") from error


async def _read_status(settings: Settings, topology: Topology, problem: str) -> Status:
    parts = _Parts()
    queue = await parts.read(_read_queue(settings, topology, problem), _Queue(problem=problem)) if settings.has_queue else None
    queue = queue or _Queue(problem=problem)
    records, late, oldest = await parts.read(_read_records(settings), (None, None, None))
    numbers = Status(
        endpoint=settings.name,
        waiting=queue.depth.waiting if queue.depth else None,
        held=queue.depth.held if queue.depth else None,
        delayed=queue.depth.delayed if queue.depth else None,
        records=records,
        late=late,
        oldest=oldest,
        dead_letters=await parts.read(_count_letters(settings), None),
        wake_up=queue.wake_up,
        superfluous=queue.superfluous,
        problem=queue.problem,
        destinations=shown_events(settings.events),
        retention=await parts.read(read_retention(settings), None),
    )
    nothing: dict[str, Any] = {}
    left = await parts.read(count_left_behind(settings), nothing)
    maintenance = await parts.read(read_maintenance(settings), nothing)
    return structs.replace(numbers, **left, **maintenance, unread=parts.reasons())


_Read = TypeVar("_Read")
_ROLE = re.compile(r"^cannot reach (store|dead letters|tokens|deduplication) ")


class _Parts:
    """Reads the parts of a status, and collects why some cannot be read."""

    def __init__(self) -> None:
        self._errors: list[RetryableError] = []

    async def read(self, part: Awaitable[_Read], otherwise: _Read) -> _Read:
        """Return a part, or `otherwise` if it cannot be read now. Raises SetupError, RetryableError if no number is shown."""
        try:
            return await part
        except RetryableError as error:
            self._errors.append(error)
            return otherwise
        except SetupError:
            if self._errors:  # the set-up may be right when the other part is back, so that one is reported first
                raise self._errors[0] from None
            raise

    def reasons(self) -> tuple[str, ...]:
        """Return each reason once, also if several parts are read from one place."""
        found: dict[str, str] = {}
        for error in self._errors:
            found.setdefault(_ROLE.sub("", str(error)), str(error))
        return tuple(found.values())


class _Queue(NamedTuple):
    """What the transport answers about an endpoint's queue."""

    problem: str
    depth: Depth | None = None
    superfluous: tuple[str, ...] = ()
    wake_up: str | None = None


async def _read_queue(settings: Settings, topology: Topology, problem: str) -> _Queue:
    superfluous: tuple[str, ...] = ()
    url = read_only(settings.transport)
    async with connection_errors("transport", url), open_transport(url, settings.name) as transport:
        depth = await _read_depth(transport, settings.name, topology.events)
        if not problem:
            superfluous, problem = await _superfluous_subscriptions(transport, topology)
        return _Queue(problem, depth, superfluous, getattr(transport, "wake_up", None))


async def read_retention(settings: Settings) -> str | None:
    """Return for how long an endpoint's claims are kept, in words. None where it keeps none for a time."""
    if not keeps_claims(settings):
        return None
    found, asked = await find(settings), configured(settings)
    if found is None:
        return f"not stored yet (code: {in_words(as_duration(asked))})"
    words = in_words(as_duration(found.kept))
    if found.since:
        since = datetime.fromtimestamp(found.since / 1000, UTC)
        words += f", {in_words(as_duration(found.next))} from {since:%Y-%m-%d %H:%M} UTC"
    return (
        words
        if in_words(as_duration(found.latest)) == in_words(as_duration(asked))
        else f"{words} (code: {in_words(as_duration(asked))})"
    )


async def _read_records(settings: Settings) -> tuple[int | None, int | None, int | None]:
    if not settings.store_plan.is_searchable:
        return None, None, None
    refuse_missing(settings.store)
    async with connection_errors("store", settings.store), open_read_only(settings) as opened:
        if (pending := opened.pending or opened.left) is None:
            return 0, 0, None
        now = LIVE.clock.now()
        records = len(await pending.undispatched(now + 1, COUNTED))
        late = len(await pending.undispatched(now - round(settings.relay_after * 1000), COUNTED))
        return records, late, await age_of_oldest(pending, now) if records else None


async def _count_letters(settings: Settings) -> int:
    setting = read_only(settings.store if settings.dead_letters is None else settings.dead_letters)
    async with connection_errors("dead_letters", setting), open_dead_letters(setting) as letters:
        return await letters.count(Filter(endpoint=settings.name))


async def _superfluous_subscriptions(transport: Transport, topology: Topology) -> tuple[tuple[str, ...], str]:
    """Return the subscriptions to types that the endpoint does not handle as events, or why they are unknown."""
    if not isinstance(transport, ListsSubscriptions):
        return (), ""
    try:
        found = await transport.subscriptions(topology.endpoint)
    except OnceOnlyError as error:  # the numbers are there all the same
        return (), f"the subscriptions of {topology.endpoint} are unknown: {error}"
    return (() if found is None else tuple(sorted(found - {*topology.events}))), ""


async def _read_depth(transport: Transport, name: str, events: Sequence[str]) -> Depth | None:
    try:
        return await transport.depth(name, events)
    except QueueMissing:  # no queue yet: it never ran, and that is an answer
        return None


async def read_maintenance(settings: Settings) -> dict[str, Any]:
    """Return the state of an endpoint's janitor, late buckets, events without subscribers, and the processes that run it."""
    async with connection_errors("store", settings.store), open_read_only(settings) as opened:
        journal = await opened.journals.read() if opened.journals is not None else None
        late = await late_buckets(opened.ring) if opened.ring is not None else None
        unsubscribed = await opened.unsubscribed.read() if opened.unsubscribed is not None else {}
        processes = await opened.presence.read() if opened.presence is not None else None
        shadow = await opened.shadow.stored.read() if opened.shadow is not None else None
    if late is None and settings.plan.history is not None and opened.leader is not None:
        late = ()  # time is not cut yet
    sweeps = settings.plan.tokens is not None or settings.makes_artifacts
    found: dict[str, Any] = {} if late is None else {"late_buckets": len(late)}
    if processes is not None:
        found["processes"] = tuple(processes)
    if shadow is not None:
        found["shadow"] = dict(shadow)
    if unsubscribed:
        found["unsubscribed"] = dict(unsubscribed)
    if journal is None and (late is not None or sweeps):
        return found | {"janitor": MaintenanceState(state="never")}
    if journal is None:
        return found
    now = LIVE.clock.now()
    current = structs.replace(journal, late=late or ())
    return found | {"janitor": _state(current, now)}


def _state(journal: MaintenanceJournal, now: int) -> MaintenanceState:
    troubles = tuple(f"{trouble.part}: {trouble.reason}" for trouble in journal.troubles(now))
    overdue = journal.overdue(now)
    state = "failing" if journal.is_failing() else "overdue" if overdue else "ok"
    return MaintenanceState(state=state, age=max(0, now - journal.at) // 1000, troubles=troubles, tasks=journal.tasks)


async def count_left_behind(settings: Settings) -> dict[str, Any]:
    """Return the numbers that an endpoint has, and under `more` the names of those that are more than they say."""
    found: dict[str, PartialCount] = {}
    plan = settings.plan
    if plan.marks is not None:
        found |= await _count_marks(plan.marks)
    if plan.tokens is not None:
        found |= await _count_tokens(settings, plan.tokens)
    if settings.makes_artifacts:
        found |= await _count_attempts(settings)
    numbers = {name: count.number for name, count in found.items()}
    return {**numbers, "more": tuple(name for name, count in found.items() if count.more)}


class PartialCount(NamedTuple):
    """A number, and whether it is more than that."""

    number: int
    more: bool = False


def _limited(listed: int) -> PartialCount:
    return PartialCount(min(listed, MOST), listed > MOST)


async def _count_marks(place: Location) -> dict[str, PartialCount]:
    async with connection_errors("deduplication", place), open_documents(read_only(place), clock=LIVE.clock) as documents:
        done = DocumentMarkStore(documents, retention=timedelta(days=1), clock=LIVE.clock)
        return {"marks": _limited(await done.count(MOST + 1))}


async def _count_tokens(settings: Settings, place: Location) -> dict[str, PartialCount]:
    if settings.plan.tokens_in_store:  # prepared ones are not committed there, so they are invisible
        async with connection_errors("tokens", place):
            live = PartialCount(await count_live(locate(read_only(place), "store"), clock=LIVE.clock))
            return {"dropped": await _count_dropped_in_store(settings, place), "live": live}
    async with connection_errors("tokens", place), open_documents(read_only(place), clock=LIVE.clock) as documents:
        dropped = PartialCount(await drops_of(documents, settings.name).read())
        prepared, waiting, more = await DocumentTokens(documents, clock=LIVE.clock).census(settings.name, MOST)
        return {"dropped": dropped, "prepared": PartialCount(prepared, more), "live": PartialCount(waiting, more)}


async def _count_dropped_in_store(settings: Settings, place: Location) -> PartialCount:
    """Read the count; messages may be sent before the endpoint ran for the first time, and made its table."""
    try:
        async with open_documents(read_only(place), clock=LIVE.clock) as documents:
            return PartialCount(await drops_of(documents, settings.name).read())
    except SchemaMissing:
        return PartialCount(0)


async def _count_attempts(settings: Settings) -> dict[str, PartialCount]:
    async with connection_errors("store", settings.store), open_read_only(settings) as opened:
        if opened.register is None:
            return {}
        return {"attempts": _limited(len(await opened.register.old(LIVE.clock.now() + 1, MOST + 1)))}
