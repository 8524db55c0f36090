"""`onceonly topology`: queues and subscriptions declared before anything runs, so that deploy order loses no event."""

import asyncio
from typing import Annotated, TypeAlias

import typer
from msgspec.structs import replace

from onceonly.assembly import open_transport
from onceonly.cli.loading import load, load_all
from onceonly.cli.output import say, show_json, show_table
from onceonly.cli.places import JsonOption, TransportOption, UrlOverrides
from onceonly.cli.reaching import answering
from onceonly.endpoint import Endpoint
from onceonly.endpoint.host import host_of
from onceonly.model.errors import SetupError
from onceonly.ports.transport import ListsSubscriptions, Topology

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
    """Create missing queues and subscriptions of these endpoints. `onceonly run` does this at start."""
    declared = asyncio.run(_declare(endpoints, UrlOverrides(transport=transport)))
    _answer(declared, as_json=as_json)


@app.command("print")
def print_(endpoints: EndpointsArgument, *, as_json: JsonOption = False) -> None:
    """Print the queues and subscriptions of these endpoints. Connects to nothing."""
    _answer([endpoint.topology() for endpoint in _receivers(endpoints)], as_json=as_json)


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
    found = load(endpoint)
    topology = replace(found.topology(), gone=tuple(dict.fromkeys(types)))
    if handled := sorted({*topology.gone} & {*topology.events}):
        raise SetupError(
            f"{endpoint} handles {', '.join(handled)}, and would subscribe again at its next start: remove the handler first"
        )
    before = asyncio.run(_change(UrlOverrides(transport=transport).settings(found).transport, topology))
    _answer([topology], as_json=as_json)
    if not as_json:
        for kind in topology.gone:
            say(
                f"{kind}: there was no subscription"
                if before is not None and kind not in before
                else f"unsubscribed from {kind}"
            )


async def _change(place: str, topology: Topology) -> frozenset[str] | None:
    """Declare it. Returns the subscriptions before, None if the broker does not list them."""
    async with answering("transport", place), open_transport(place, topology.endpoint) as transport:
        before = None
        if topology.gone and isinstance(transport, ListsSubscriptions):
            before = await transport.subscriptions(topology.endpoint)
        await transport.declare([topology])
        return before


def _receivers(names: list[str]) -> list[Endpoint]:
    """Load the endpoints. Leaves out those that only send: they have no queue."""
    found = []
    for endpoint in load_all(names):
        if host_of(endpoint).only_sends:
            say(f"{endpoint.name}: has no handlers, so it needs no queue")
        else:
            found.append(endpoint)
    return found


async def _declare(names: list[str], instead: UrlOverrides) -> list[Topology]:
    declared = []
    for endpoint in _receivers(names):
        await _change(instead.settings(endpoint).transport, endpoint.topology())
        declared.append(endpoint.topology())
    return declared


def _answer(topologies: list[Topology], *, as_json: bool) -> None:
    if as_json:
        show_json([_as_json(each) for each in topologies])
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


def _as_json(topology: Topology) -> dict[str, object]:
    found: dict[str, object] = {"endpoint": topology.endpoint, "events": topology.events}
    return found | {"commands": topology.commands} if topology.commands else found
