"""`onceonly status`: queues, pending records, dead letters and maintenance of endpoints."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from onceonly.cli.commands import JsonOption, StoreOption, TransportOption
from onceonly.cli.output import answers, say, show_destinations, show_json, table_of, write
from onceonly.model.errors import InvalidHandler, OnceOnlyError, SetupError
from onceonly.model.escaping import escape, to_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from onceonly.cli.endpoint_status import Status
    from onceonly.endpoint import Endpoint
    from onceonly.ports.transport import Topology

EXTRA = (
    *("wake_up", "unsubscribed", "shadow", "dropped", "prepared", "live", "marks", "attempts", "late_buckets", "janitor"),
    "processes",
    "retention",
)
"""Columns that are shown if at least one of the endpoints has them."""
UNLISTED = frozenset({"more", "superfluous", "problem", "unread", "destinations"})
"""What is not a column."""

_SHADOW = {
    "known": "copies of messages that were handled",
    "mismatched": "their ids were handled with another body, so they would be dead letters. Correct the sender",
    "undecidable": "their ids are older than the retention, or from the future, so they would be dead letters",
}
_Looked = TypeVar("_Looked")
Look = Callable[[], Awaitable[_Looked]]


def status(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.1, max=86_400, metavar="SECONDS", help="Interval of --watch.")] = 2.0,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the queue, pending records, dead letters and maintenance of each endpoint.

    Columns:

    * waiting: messages in the queue that no worker has received

    * held: messages that workers are processing

    * delayed: messages that are not due yet, such as retries

    * records: handled messages whose own messages are not all sent

    * late: records older than `relay_after`

    * oldest: age of the oldest record, in seconds

    * dead letters: messages that were given up

    Columns for endpoints that use these features:

    * wake up: whether the PostgreSQL queue is notified or polled

    * unsubscribed: events that it published and that had no subscriber

    * shadow: messages that shadow mode handled and `History` would not have

    * dropped: messages without a live token, usually duplicates

    * prepared, live: tokens of messages to the endpoint

    * marks: messages in its dedup store

    * attempts: open attempts to create blobs and requests

    * late buckets: time buckets of claims that were not rotated in time

    * janitor: state and last run of the clean-up tasks

    * processes: processes that run the endpoint

    * retention: for how long its claims are kept, and what its code says if that differs

    Numbers that cannot be read, such as those of a broker that is away, are shown as -, with the reason below. The exit
    code is 1 then.

    With --watch and --json, each refresh is one line of JSON. A failed refresh is a line with "error".
    """
    import asyncio

    from onceonly.cli.endpoint_status import Status, read_status
    from onceonly.cli.targets import UrlOverrides, load_all

    found = [(UrlOverrides(store, transport).settings(endpoint), *_topology(endpoint)) for endpoint in load_all(endpoints)]

    async def read() -> list[Status]:
        return [await read_status(settings, topology, problem) for settings, topology, problem in found]

    if watch:
        watching = watch_as_json(read, every) if as_json else watch_on_screen(read, _draw, every)
        with suppress(KeyboardInterrupt):  # how a person ends it
            asyncio.run(watching)
        return
    numbers = asyncio.run(read())
    if as_json:
        show_json(numbers)
        _exit_if_unread(numbers)
        return
    table, *_ = _draw(numbers)
    answers().print(table)
    show_destinations({each.endpoint: each.destinations for each in numbers})
    for warning in _warnings(numbers):
        say(warning)
    _exit_if_unread(numbers)


def _exit_if_unread(numbers: "list[Status]") -> None:
    if any(each.unread for each in numbers):
        raise typer.Exit(1)


def _topology(endpoint: "Endpoint") -> "tuple[Topology, str]":
    """Return the topology, or only the queue with what is wrong with the handlers. An endpoint may only send."""
    from onceonly.endpoint.host import host_of
    from onceonly.ports.transport import Topology

    if host_of(endpoint).only_sends:
        return Topology(endpoint=endpoint.name), ""
    try:
        return endpoint.topology(), ""
    except InvalidHandler as error:
        return Topology(endpoint=endpoint.name), str(error)


def _draw(numbers: "list[Status]") -> "list[RenderableType]":
    from rich.text import Text

    columns = [name for name in numbers[0].__struct_fields__ if name not in UNLISTED]
    shown = [name for name in columns if name not in EXTRA or any(getattr(each, name) is not None for each in numbers)]
    table = table_of([name.replace("_", " ") for name in shown], [[_cell(each, name) for name in shown] for each in numbers])
    return [table, *(Text(escape(warning), style="yellow") for warning in _warnings(numbers))]


def _warnings(numbers: "list[Status]") -> list[str]:
    from onceonly.model.wording import counted, in_words

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
    shadow = [
        f"shadow: {each.endpoint} handled {counted(count, 'message')} that History(...) would not have: {_SHADOW[outcome]}"
        for each in numbers
        for outcome, count in (each.shadow or {}).items()
        if outcome in _SHADOW
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
    unread = [f"error: {reason}" for reason in dict.fromkeys(reason for each in numbers for reason in each.unread)]
    return unread + problems + superfluous + unsubscribed + shadow + dropped + troubles + stale


def _cell(status: "Status", name: str) -> object:
    value = getattr(status, name)
    if name == "janitor" and value is not None:
        return value.in_words()
    if name == "processes" and value is not None:
        return sum(not each.is_stale for each in value)
    if isinstance(value, dict):
        return sum(value.values())
    if value is None:
        return "not searched" if name == "records" and not status.unread else "-"
    return f"more than {value}" if name in status.more else value


async def watch_as_json(look: Look[_Looked], every: float, *, looks: int | None = None) -> None:
    """Print what each look gives as one line; a look that fails is a line with `error`. Until cancelled, or this many `looks`.

    Raises SetupError: another look would find the same.
    """
    async for seen in _results(look, every, looks):
        line = {"error": f"{seen} ({type(seen).__name__})"} if isinstance(seen, OnceOnlyError) else seen
        write(to_json(line) + "\n")


async def watch_on_screen(
    look: Look[_Looked], draw: "Callable[[_Looked], list[RenderableType]]", every: float, *, looks: int | None = None
) -> None:
    """Draw what each look gives, in place; without a terminal below the last. An error is shown below the last result.

    As `watch_as_json`.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console = answers()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    last: list[RenderableType] = []
    with live or nullcontext():
        async for seen in _results(look, every, looks):
            parts: list[RenderableType] = [Text(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"), style="dim")]
            if isinstance(seen, OnceOnlyError):
                parts += [*last, Text(escape(f"error: {seen}"), style="bold red")]
            else:
                last = draw(seen)
                parts += last
            if live is not None:
                live.update(Group(*parts), refresh=True)
            else:
                console.print(*parts, sep="\n")


async def _results(look: Look[_Looked], every: float, looks: int | None) -> AsyncIterator[_Looked | OnceOnlyError]:
    import asyncio

    while looks is None or looks > 0:
        try:
            yield await look()
        except SetupError:
            raise
        except OnceOnlyError as error:
            yield error
        looks = None if looks is None else looks - 1
        if looks != 0:
            await asyncio.sleep(every)
