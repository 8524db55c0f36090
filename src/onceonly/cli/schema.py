"""`onceonly schema`: its options. Tables, and places for documents and blobs, are made by a person's command."""

from typing import Annotated, TypeAlias

import typer

from onceonly.cli.options import Component, JsonOption, StoreOption, TransportOption

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Create, upgrade, print and check tables in databases; create tables, containers and buckets in services.",
)


PlacesArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="ENDPOINT_OR_URL", help="module:endpoint for all systems of an endpoint, or the URL of a database or service."
    ),
]
ComponentOption: TypeAlias = Annotated[
    list[Component] | None,
    typer.Option("--component", help="Only the tables for this use [default: all].", show_default=False),
]
PrintOption: TypeAlias = Annotated[
    bool, typer.Option("--print", help="Print the SQL statements instead of executing them.", show_default=False)
]


AcceptLossOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="Also create tables whose rows are lost, although messages may be lost or handled again.",
        show_default=False,
    ),
]


@app.command("create")
def create_(  # noqa: PLR0913 - one parameter for each option
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
    only_print: PrintOption = False,
    accept_loss: AcceptLossOption = False,
) -> None:
    """Create missing tables, and indexes that are missing from existing ones. Nothing else is changed."""
    from onceonly.cli.work import schema as work  # noqa: PLC0415 - a usage error needs nothing of the library

    targets = work.targets(places, component, store, transport)
    if only_print:
        work.print_sql(targets)
    else:
        work.apply("create", targets, as_json=as_json, accepts_loss=accept_loss)


@app.command("upgrade")
def upgrade_(  # noqa: PLR0913 - one parameter for each option
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
    only_print: PrintOption = False,
    accept_loss: AcceptLossOption = False,
) -> None:
    """Upgrade tables to the schema of this version, and create missing ones."""
    from onceonly.cli.work import schema as work  # noqa: PLC0415 - a usage error needs nothing of the library

    targets = work.targets(places, component, store, transport)
    if only_print:
        work.print_sql(targets, upgrading=True, accepts_loss=accept_loss)
    else:
        work.apply("upgrade", targets, as_json=as_json, accepts_loss=accept_loss)


@app.command("check")
def check_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that all tables exist, are complete and have the right version. Exits with code 1 if not."""
    from onceonly.cli.work import schema as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.apply("check", work.targets(places, component, store, transport), as_json=as_json)


@app.command("print")
def print_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Print the SQL that creates the tables, for review or for a migration. Connects to nothing."""
    from onceonly.cli.work import schema as work  # noqa: PLC0415 - a usage error needs nothing of the library

    work.print_sql(work.targets(places, component, store, transport))
