"""What `onceonly status` does."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, structs
from rich.console import RenderableType
from rich.text import Text

from onceonly.assembly import look_at_store, open_dead_letters, open_transport
from onceonly.assembly.looking import looked_at, refuse_missing
from onceonly.cli.drain import COUNTED
from onceonly.cli.loading import load_all
from onceonly.cli.maintenance import MaintenanceState, count_left_behind, read_maintenance
from onceonly.cli.output import answers, say, show_json, table_of
from onceonly.cli.places import UrlOverrides
from onceonly.cli.reaching import answering
from onceonly.cli.watch import watch_as_json, watch_on_screen
from onceonly.config.endpoint import Settings
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.formats.escaping import escape
from onceonly.model.durations import in_words
from onceonly.model.errors import InvalidHandler, OnceOnlyError, QueueMissing, SetupError
from onceonly.model.presence import ProcessState
from onceonly.model.wording import counted
from onceonly.operations.overview import age_of_oldest
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, ListsSubscriptions, Topology, Transport
from onceonly.runtime.environment import LIVE

EXTRA = ("wake_up", "unsubscribed", "dropped", "prepared", "live", "marks", "attempts", "late_buckets", "janitor", "processes")
"""What is shown where at least one of the endpoints has it."""


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
    `late_buckets` are buckets of claims that are not rotated, and `janitor` is how the janitor is; where there is one.
    `processes` are those that run it, where they report to the store.
    """

    endpoint: str
    waiting: int | None
    held: int | None
    delayed: int | None
    records: int | None
    late: int | None
    oldest: int | None
    dead_letters: int
    wake_up: str | None = None
    superfluous: tuple[str, ...] = ()
    unsubscribed: dict[str, int] | None = None
    dropped: int | None = None
    prepared: int | None = None
    live: int | None = None
    marks: int | None = None
    attempts: int | None = None
    late_buckets: int | None = None
    janitor: MaintenanceState | None = None
    processes: tuple[ProcessState, ...] | None = None
    more: tuple[str, ...] = ()
    problem: str = ""


COLUMNS = [name for name in Status.__struct_fields__ if name not in ("more", "superfluous", "problem")]


def status(endpoints: list[str], *, watch: bool, every: float, store: str | None, transport: str | None, as_json: bool) -> None:
    """Show the queue, pending records, dead letters and maintenance of each endpoint."""
    found = [(UrlOverrides(store, transport).settings(endpoint), *_topology(endpoint)) for endpoint in load_all(endpoints)]

    async def look() -> list[Status]:
        return [await _look_at_one(settings, topology, problem) for settings, topology, problem in found]

    if watch:
        watching = watch_as_json(look, every) if as_json else watch_on_screen(look, _drawn, every)
        with suppress(KeyboardInterrupt):  # how a person ends it
            asyncio.run(watching)
        return
    numbers = asyncio.run(look())
    if as_json:
        show_json(numbers)
        return
    table, *_ = _drawn(numbers)
    answers().print(table)
    for warning in _warnings(numbers):
        say(warning)


def _topology(endpoint: Endpoint) -> tuple[Topology, str]:
    """Return the topology, or only the queue with what is wrong with the handlers. An endpoint may only send."""
    if host_of(endpoint).only_sends:
        return Topology(endpoint=endpoint.name), ""
    try:
        return endpoint.topology(), ""
    except InvalidHandler as error:
        return Topology(endpoint=endpoint.name), str(error)


def _drawn(numbers: list[Status]) -> list[RenderableType]:
    shown = [name for name in COLUMNS if name not in EXTRA or any(getattr(each, name) is not None for each in numbers)]
    table = table_of([name.replace("_", " ") for name in shown], [[_cell(each, name) for name in shown] for each in numbers])
    return [table, *(Text(escape(warning), style="yellow") for warning in _warnings(numbers))]


def _warnings(numbers: list[Status]) -> list[str]:
    dropped = [
        f"warning: {each.endpoint} dropped {counted(each.dropped, 'message')} without a live token. Duplicates are dropped "
        "this way. If there were fewer duplicates, tokens were lost, and their messages with them"
        for each in numbers
        if each.dropped
    ]
    unsubscribed = [
        f"warning: {each.endpoint} published {counted(count, 'event')} of type {kind} without a subscriber. "
        "Such events are lost: run the endpoint that handles them, or `onceonly topology create module:endpoint`, before "
        "it publishes"
        for each in numbers
        for kind, count in (each.unsubscribed or {}).items()
    ]
    superfluous = [
        f"warning: {each.endpoint} is subscribed to {kind}, which it does not handle as an event. When no process of a version "
        f"that publishes or handles it as an event runs: `onceonly topology unsubscribe module:endpoint --type {kind}`"
        for each in numbers
        for kind in each.superfluous
    ]
    troubles = [
        f"warning: {each.endpoint}: {trouble}"
        for each in numbers
        if each.janitor is not None
        for trouble in each.janitor.troubles
    ]
    stale = [
        f"warning: {each.endpoint}: process {process.report.process} has not reported for {in_words(process.age)}"
        for each in numbers
        for process in each.processes or ()
        if process.is_stale
    ]
    problems = [f"warning: {each.problem}" for each in numbers if each.problem]
    return problems + superfluous + unsubscribed + dropped + troubles + stale


def _cell(status: Status, name: str) -> object:
    value = getattr(status, name)
    if isinstance(value, MaintenanceState):
        return value.in_words()
    if name == "processes" and value is not None:
        return sum(not each.is_stale for each in value)
    if isinstance(value, dict):
        return sum(value.values())
    if value is None:
        return "not searched" if name == "records" else "-"
    return f"more than {value}" if name in status.more else value


async def _look_at_one(settings: Settings, topology: Topology, problem: str) -> Status:
    try:
        return await _look_at(settings, topology, problem)
    except SetupError as error:
        raise type(error)(f"endpoint {settings.name!r}: {error}") from error


async def _look_at(settings: Settings, topology: Topology, problem: str) -> Status:
    where = looked_at(settings.transport)
    async with answering("transport", where), open_transport(where, settings.name) as transport:
        depth = await _depth(transport, settings.name, topology.events)
        superfluous: tuple[str, ...] = ()
        if not problem:
            superfluous, problem = await _superfluous(transport, topology)
        wake_up: str | None = getattr(transport, "wake_up", None)
    records, late, oldest = await _look_at_records(settings)
    numbers = Status(
        endpoint=settings.name,
        waiting=depth.waiting if depth else None,
        held=depth.held if depth else None,
        delayed=depth.delayed if depth else None,
        records=records,
        late=late,
        oldest=oldest,
        dead_letters=await _count_letters(settings),
        wake_up=wake_up,
        superfluous=superfluous,
        problem=problem,
    )
    return structs.replace(numbers, **await count_left_behind(settings), **await read_maintenance(settings))


async def _look_at_records(settings: Settings) -> tuple[int | None, int | None, int | None]:
    if settings.places.store.keeps_documents:
        return None, None, None
    refuse_missing(settings.store)
    async with answering("store", settings.store), look_at_store(settings) as opened:
        if (pending := opened.pending) is None:
            return 0, 0, None
        now = LIVE.clock.now()
        records = len(await pending.undispatched(now + 1, COUNTED))
        late = len(await pending.undispatched(now - round(settings.relay_after * 1000), COUNTED))
        return records, late, await age_of_oldest(pending, now) if records else None


async def _count_letters(settings: Settings) -> int:
    letters_in = looked_at(settings.store if settings.dead_letters is None else settings.dead_letters)
    async with answering("dead_letters", letters_in), open_dead_letters(letters_in) as letters:
        return await letters.count(Filter(endpoint=settings.name))


async def _superfluous(transport: Transport, topology: Topology) -> tuple[tuple[str, ...], str]:
    """Return the subscriptions to types that the endpoint does not handle as events, or why they are unknown."""
    if not isinstance(transport, ListsSubscriptions):
        return (), ""
    try:
        found = await transport.subscriptions(topology.endpoint)
    except OnceOnlyError as error:  # the numbers are there all the same
        return (), f"the subscriptions of {topology.endpoint} are unknown: {error}"
    return (() if found is None else tuple(sorted(found - {*topology.events}))), ""


async def _depth(transport: Transport, name: str, events: Sequence[str]) -> Depth | None:
    try:
        return await transport.depth(name, events)
    except QueueMissing:  # no queue yet: it never ran, and that is an answer
        return None
