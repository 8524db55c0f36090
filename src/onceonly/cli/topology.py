"""`onceonly topology`: queues and subscriptions declared before anything runs, so that deploy order loses no event."""

import asyncio
from typing import Annotated, TypeAlias

import typer

from onceonly.cli.loading import load_all
from onceonly.cli.output import show_json, show_table
from onceonly.cli.places import Instead, JsonOption, TransportOption
from onceonly.cli.reaching import answering
from onceonly.ports.transport import Topology
from onceonly.wiring import open_transport

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Declare the queues and subscriptions of endpoints before they run."
)

EndpointsArgument: TypeAlias = Annotated[list[str], typer.Argument(metavar="MODULE:ENDPOINT", help="Endpoints to declare.")]


@app.command()
def create(endpoints: EndpointsArgument, *, transport: TransportOption = None, as_json: JsonOption = False) -> None:
    """Declare what these endpoints need; harmless when it is there. `onceonly run` does so too."""
    declared = asyncio.run(_declare(endpoints, Instead(transport=transport)))
    _answer(declared, as_json=as_json)


@app.command("print")
def print_(endpoints: EndpointsArgument, *, as_json: JsonOption = False) -> None:
    """Show the queues and subscriptions of these endpoints. Connects to nothing."""
    _answer([endpoint.topology() for endpoint in load_all(endpoints)], as_json=as_json)


async def _declare(names: list[str], instead: Instead) -> list[Topology]:
    declared = []
    for endpoint in load_all(names):
        place = instead.settings(endpoint).transport
        async with answering("transport", place), open_transport(place, endpoint.name) as transport:
            await transport.declare([endpoint.topology()])
        declared.append(endpoint.topology())
    return declared


def _answer(topologies: list[Topology], *, as_json: bool) -> None:
    if as_json:
        show_json(topologies)
    else:
        show_table("", ("queue", "subscribes to"), [(each.endpoint, ", ".join(each.events)) for each in topologies])
