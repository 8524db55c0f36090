"""`onceonly schema`: tables, and containers for documents and blobs, are created by a person's command."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from onceonly.cli.commands import Component, JsonOption, StoreOption, TransportOption
from onceonly.cli.output import NEGATIVE, say, show, show_json, show_table

if TYPE_CHECKING:
    from onceonly.cli.schema_parts import SchemaAction, SchemaFinding, SchemaTarget

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
    targets = _targets(places, component, store, transport)
    if only_print:
        _print_sql(targets)
    else:
        _maintain("create", targets, as_json=as_json, accepts_loss=accept_loss)


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
    targets = _targets(places, component, store, transport)
    if only_print:
        _print_sql(targets, upgrading=True, accepts_loss=accept_loss)
    else:
        _maintain("upgrade", targets, as_json=as_json, accepts_loss=accept_loss)


@app.command("check")
def check_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that all tables exist, are complete and have the right version. Exits with code 1 if not.

    Also names endpoints that no process maintains. This does not change the exit code, as no worker may run yet.
    """
    import asyncio

    from onceonly.cli.schema_parts import unmaintained

    targets = _targets(places, component, store, transport)
    for line in asyncio.run(unmaintained(targets)):
        say(f"warning: {line}")
    _maintain("check", targets, as_json=as_json)


@app.command("print")
def print_(
    places: PlacesArgument,
    *,
    component: ComponentOption = None,
    store: StoreOption = None,
    transport: TransportOption = None,
) -> None:
    """Print the SQL that creates the tables, for review or for a migration. Connects to nothing."""
    _print_sql(_targets(places, component, store, transport))


def _targets(
    places: list[str], components: list[Component] | None, store: str | None, transport: str | None
) -> "list[SchemaTarget]":
    from onceonly.cli.schema_parts import SchemaTarget
    from onceonly.cli.targets import UrlOverrides

    return [SchemaTarget(place, components, UrlOverrides(store, transport)) for place in places]


def _print_sql(targets: "Sequence[SchemaTarget]", *, upgrading: bool = False, accepts_loss: bool = False) -> None:
    import asyncio

    from onceonly.cli.schema_parts import render_sql

    show("\n".join(asyncio.run(render_sql(targets, upgrading=upgrading, accepts_loss=accepts_loss))))


def _maintain(action: "SchemaAction", targets: "Sequence[SchemaTarget]", *, as_json: bool, accepts_loss: bool = False) -> None:
    """Create, upgrade or check, and print the result. Exits with code 1 if something is not ready."""
    import asyncio

    from onceonly.cli.schema_parts import maintain

    findings = asyncio.run(maintain(action, targets, accepts_loss=accepts_loss))
    if as_json:
        show_json(findings)
    else:
        rows = [(each.component, each.database, each.version, _state(each)) for each in findings]
        show_table("", ("component", "database", "version", "state"), rows)
    if not all(each.ready for each in findings):
        raise typer.Exit(NEGATIVE)


def _state(finding: "SchemaFinding") -> str:
    if not finding.ready:
        return finding.problem
    return f"ready, made again: {', '.join(finding.repaired)}" if finding.repaired else "ready"
