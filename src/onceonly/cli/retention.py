"""`onceonly retention`: for how long the claims of an endpoint are kept, as it is stored; shown and changed."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from msgspec import Struct

from onceonly.cli.commands import JsonOption, StoreOption
from onceonly.cli.output import say, show_json, show_table
from onceonly.model.errors import SetupError

if TYPE_CHECKING:
    from datetime import timedelta

    from onceonly.config.endpoint import Settings
    from onceonly.model.changed_retention import KnownRetention

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Show and change for how long the claims of an endpoint are kept.",
)
EndpointArgument: TypeAlias = Annotated[str, typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoint, such as shop:shop.")]
RetentionArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="RETENTION", help="A duration such as 14d or 36h, or `forever`.")
]


class ShownRetention(Struct, frozen=True, kw_only=True):
    """The retention of one endpoint. Durations are in seconds, None forever; instants are in milliseconds since 1970.

    `stored` holds for messages that are sent now, None before the first start. `next` holds for those that are sent from
    `since` on; it is left out if it is the same. `code` is what the endpoint's code says. `known_since` is there in documents
    for a while after a longer retention was set: what was sent before may be forgotten.
    """

    endpoint: str
    stored: float | None
    code: float | None
    is_stored: bool
    next: float | None = None
    since: int = 0
    known_since: int = 0


@app.command("show")
def show_(
    endpoints: Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")],
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show for how long the claims of endpoints are kept, and what their code says.

    What is stored holds. The code decides only when an endpoint runs for the first time. An endpoint does not start if its code
    asks for more than is stored.
    """
    import asyncio

    from onceonly.cli.targets import UrlOverrides, load_all

    settings = [UrlOverrides(store).settings(endpoint) for endpoint in load_all(endpoints)]

    async def read() -> list[ShownRetention]:
        return [_shown(each, await find(each)) for each in settings]

    _show(asyncio.run(read()), as_json=as_json)


@app.command("set")
def set_(
    endpoint: EndpointArgument,
    retention: RetentionArgument,
    *,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change for how long the claims of an endpoint are kept, while it runs.

    A longer retention loses no claim that is known. A shorter one forgets only what is older. In a SQL database this creates
    tables, so its user needs the right to do that. Copies that are older than the retention become dead letters.

    It is refused if it is shorter than the endpoint's code asks for, or than its retries need: change the code first.
    """
    import asyncio

    from onceonly.cli.targets import UrlOverrides, load
    from onceonly.model.wording import parse_retention

    try:
        wanted = parse_retention(retention)
    except ValueError as error:
        raise SetupError(str(error)) from error
    settings = UrlOverrides(store).settings(load(endpoint))
    _refuse_less(endpoint, settings, wanted)
    changed = asyncio.run(_change(settings, wanted))
    _show([_shown(settings, changed)], as_json=as_json)
    if not as_json:
        for line in _meanwhile(changed):
            say(line)


async def find(settings: "Settings") -> "KnownRetention | None":
    """Return what is stored. None for an endpoint that has not run yet. Raises SetupError, CommitFailed, OutcomeUnknown."""
    from dataclasses import replace
    from typing import Any

    from onceonly.assembly.retention import open_retention
    from onceonly.assembly.stores import read_only
    from onceonly.cli.targets import connection_errors
    from onceonly.model.errors import SchemaMissing

    own: Any = settings.deduplication
    looked_at = replace(settings, store=read_only(settings.store))
    if settings.plan.marks is not None:
        looked_at = replace(looked_at, deduplication=replace(own, url=read_only(own.url)))
    try:
        async with connection_errors("store", settings.store), open_retention(looked_at) as opened:
            return await opened.find()
    except SchemaMissing:
        return None


async def _change(settings: "Settings", wanted: "timedelta") -> "KnownRetention":
    from onceonly.assembly.retention import open_retention
    from onceonly.cli.targets import ANY_TIME, connection_errors
    from onceonly.model.retention import in_milliseconds

    async with connection_errors("store", settings.store, ANY_TIME), open_retention(settings) as opened:
        return await opened.change(in_milliseconds(wanted))


def _refuse_less(name: str, settings: "Settings", wanted: "timedelta") -> None:
    """Refuse what the next start would refuse. Raises SetupError."""
    from dataclasses import replace
    from typing import Any

    from onceonly.assembly.stored_retention import configured
    from onceonly.cli.targets import load
    from onceonly.endpoint.host import host_of
    from onceonly.model.changed_retention import as_duration
    from onceonly.model.retention import in_milliseconds
    from onceonly.model.wording import in_words

    asked = configured(settings)
    if asked > in_milliseconds(wanted):
        raise SetupError(
            f"the code of endpoint {settings.name!r} asks for a retention of {in_words(as_duration(asked))}. Set it to at most "
            f"{in_words(wanted)} there, restart the endpoint, then run this command"
        )
    own: Any = settings.deduplication
    endpoint = load(name)
    if asked and not host_of(endpoint).only_sends:
        host_of(endpoint).handlers(settings=replace(settings, deduplication=replace(own, retention=wanted)))


def _shown(settings: "Settings", known: "KnownRetention | None") -> ShownRetention:
    from onceonly.assembly.stored_retention import configured

    if known is None:
        return ShownRetention(endpoint=settings.name, stored=None, code=_seconds(configured(settings)), is_stored=False)
    return ShownRetention(
        endpoint=settings.name,
        stored=_seconds(known.kept),
        code=_seconds(configured(settings)),
        is_stored=True,
        next=_seconds(known.next) if known.next else None,
        since=known.since,
        known_since=known.known_since,
    )


def _seconds(milliseconds: int) -> float | None:
    from onceonly.model.wording import FOREVER_MS

    return None if milliseconds >= FOREVER_MS else milliseconds / 1000


def _words(seconds: float | None) -> str:
    from onceonly.model.wording import NEVER_ENDS, in_words

    return NEVER_ENDS if seconds is None else in_words(seconds)


def _show(found: list[ShownRetention], *, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    rows = [(each.endpoint, _words(each.stored) if each.is_stored else "not stored yet", _words(each.code)) for each in found]
    show_table("", ("endpoint", "claims are kept for", "the code says"), rows)
    for each in found:
        if each.since:
            say(f"{each.endpoint}: {_words(each.next)} for messages that are sent from {_instant(each.since)} on")
        if each.known_since:
            say(f"{each.endpoint}: what was sent before {_instant(each.known_since)} may be forgotten already")


def _meanwhile(changed: "KnownRetention") -> list[str]:
    if changed.known_since:
        return ["claims that are there keep the time that they were made with: copies beyond it become dead letters"]
    return []


def _instant(milliseconds: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
