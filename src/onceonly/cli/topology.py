"""`onceonly topology`: queues and subscriptions declared before anything runs, so that deploy order loses no event."""

from typing import Annotated, TypeAlias

import typer

from onceonly.cli.options import JsonOption, TransportOption

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
    from onceonly.cli.work import topology as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.create(endpoints, transport=transport, as_json=as_json)


@app.command("print")
def print_(endpoints: EndpointsArgument, *, as_json: JsonOption = False) -> None:
    """Print the queues and subscriptions of these endpoints. Connects to nothing."""
    from onceonly.cli.work import topology as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.print_(endpoints, as_json=as_json)


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
    from onceonly.cli.work import topology as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.unsubscribe(endpoint, types=types, transport=transport, as_json=as_json)
