"""`onceonly topology`: queues and subscriptions declared before anything runs, so that deploy order loses no event."""

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from onceonly.cli.commands import JsonOption, TransportOption
from onceonly.cli.output import say, show_destinations, show_json, show_table
from onceonly.model.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceonly.cli.targets import UrlOverrides
    from onceonly.endpoint import Endpoint
    from onceonly.ports.transport import Topology

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create the queues and subscriptions of endpoints before they run, and remove unused subscriptions.",
)
EndpointsArgument: TypeAlias = Annotated[
    list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints, such as shop:shop.")
]


@app.command()
def create(endpoints: EndpointsArgument, *, transport: TransportOption = None, as_json: JsonOption = False) -> None:
    """Create missing queues and subscriptions of these endpoints. `onceonly run` does this at start.

    Destinations of `events=` belong to other programs, and are not created.
    """
    import asyncio

    from onceonly.cli.targets import UrlOverrides

    declared = asyncio.run(_declare(endpoints, UrlOverrides(transport=transport)))
    _show(declared, as_json=as_json, destinations=_destinations(endpoints))


@app.command("print")
def print_(endpoints: EndpointsArgument, *, as_json: JsonOption = False) -> None:
    """Print the queues and subscriptions of these endpoints, and where else their events go. Connects to nothing."""
    found = [endpoint.topology() for endpoint in _load_receivers(endpoints)]
    _show(found, as_json=as_json, destinations=_destinations(endpoints))


@app.command()
def unsubscribe(
    endpoint: Annotated[str, typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoint, such as shop:shop.")],
    *,
    types: Annotated[
        list[str], typer.Option("--type", metavar="TYPE", help="Event type that the endpoint no longer handles; repeatable.")
    ],
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the subscriptions of an endpoint to event types that it no longer handles.

    Run this after the last process of the version that handled them has stopped: a start never removes subscriptions.
    Messages in the queue stay there.
    """
    import asyncio

    from msgspec.structs import replace

    from onceonly.cli.targets import UrlOverrides, load

    found = load(endpoint)
    topology = replace(found.topology(), gone=tuple(dict.fromkeys(types)))
    if handled := sorted({*topology.gone} & {*topology.events}):
        raise SetupError(
            f"{endpoint} handles {', '.join(handled)}, and would subscribe again at its next start: remove the handler first"
        )
    before = asyncio.run(_declare_one(UrlOverrides(transport=transport).settings(found).required_transport, topology))
    _show([topology], as_json=as_json)
    if not as_json:
        for kind in topology.gone:
            say(
                f"{kind}: there was no subscription"
                if before is not None and kind not in before
                else f"unsubscribed from {kind}"
            )


async def _declare(names: list[str], instead: "UrlOverrides") -> "list[Topology]":
    declared = []
    for endpoint in _load_receivers(names):
        await _declare_one(instead.settings(endpoint).required_transport, endpoint.topology())
        declared.append(endpoint.topology())
    return declared


async def _declare_one(url: str, topology: "Topology") -> frozenset[str] | None:
    """Declare a topology. Return the subscriptions before, None if the broker does not list them."""
    from onceonly.assembly import open_transport
    from onceonly.cli.targets import connection_errors
    from onceonly.ports.transport import ListsSubscriptions

    async with connection_errors("transport", url), open_transport(url, topology.endpoint) as transport:
        before = None
        if topology.gone and isinstance(transport, ListsSubscriptions):
            before = await transport.subscriptions(topology.endpoint)
        await transport.declare([topology])
        return before


def _load_receivers(names: list[str]) -> "list[Endpoint]":
    """Load the endpoints. Leaves out those that only send: they have no queue."""
    from onceonly.cli.targets import load_all
    from onceonly.endpoint.host import host_of

    found = []
    for endpoint in load_all(names):
        if host_of(endpoint).only_sends:
            say(f"{endpoint.name}: has no handlers, so it needs no queue")
        else:
            found.append(endpoint)
    return found


def _destinations(names: list[str]) -> dict[str, dict[str, str]]:
    """Return where events go that do not go to their subscribers, by endpoint and type."""
    from onceonly.cli.targets import load_all
    from onceonly.config.destinations import shown_events

    return {each.name: found for each in load_all(names) if (found := shown_events(each.settings.events))}


def _show(topologies: "list[Topology]", *, as_json: bool, destinations: "Mapping[str, dict[str, str]] | None" = None) -> None:
    destinations = destinations or {}
    if as_json:
        show_json([_as_json(each, destinations.get(each.endpoint)) for each in topologies])
        return
    rows = [(each.endpoint, ", ".join(each.events), ", ".join(each.commands)) for each in topologies]
    if any(each.commands for each in topologies):
        show_table("", ("queue", "subscribes to", "takes as commands"), rows)
        say(
            "commands: not subscribed to. If an earlier version subscribed to one, its subscription stays until "
            "`onceonly topology unsubscribe module:endpoint --type TYPE`"
        )
    else:
        show_table("", ("queue", "subscribes to"), [row[:2] for row in rows])
    show_destinations(destinations)


def _as_json(topology: "Topology", destinations: dict[str, str] | None) -> dict[str, object]:
    found: dict[str, object] = {"endpoint": topology.endpoint, "events": topology.events}
    found |= {"commands": topology.commands} if topology.commands else {}
    return found | {"destinations": destinations} if destinations else found
