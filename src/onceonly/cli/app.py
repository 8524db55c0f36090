"""All commands, put together, and how they end."""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from onceonly.cli import (
    dashboard,
    dead,
    dead_actions,
    dead_files,
    janitor,
    monitoring,
    plan,
    relay,
    run,
    schema,
    send,
    status,
    topology,
)
from onceonly.cli.hints import pasteable
from onceonly.cli.output import NEGATIVE, SETUP, complain
from onceonly.cli.plugins import add_plugins
from onceonly.demo.command import demo
from onceonly.formats.escaping import escape
from onceonly.model.errors import OnceOnlyError, SetupError

app = typer.Typer(
    name="onceonly",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        typer.echo(f"onceonly {version('onceonly')}")
        raise typer.Exit


@app.callback()
def onceonly(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True, expose_value=False)
    ] = False,
) -> None:
    """Run, inspect and maintain endpoints: message handlers whose effects happen exactly once."""


app.command()(run.run)
app.command()(relay.relay)
app.command()(send.send)
app.command()(status.status)
app.command()(dashboard.dashboard)
app.command()(janitor.janitor)
app.command()(plan.plan)
dead.app.command()(dead_actions.edit)
dead.app.command()(dead_actions.restore)
dead.app.command()(dead_actions.actions)
dead.app.command("export")(dead_files.export)
dead.app.command("import")(dead_files.import_)
app.add_typer(dead.app, name="dead")
app.add_typer(schema.app, name="schema")
app.add_typer(topology.app, name="topology")
app.add_typer(monitoring.app, name="metrics")
app.command()(demo)


def run_commands(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run what the arguments say (default: those of this process), and end the process."""
    given = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        add_plugins(app, given)
        app(given, prog_name="onceonly")
    except SetupError as error:
        complain(pasteable(str(error), given))
        sys.exit(SETUP)
    except OnceOnlyError as error:
        complain(f"{pasteable(str(error), given)} ({type(error).__name__})")
        sys.exit(NEGATIVE)
    except OSError as error:  # a full disk, a file that may not be read
        complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(SETUP)
    except Exception:  # noqa: BLE001 - a bug: its traceback may quote a message, so it must not reach the terminal as it is
        typer.echo(escape(traceback.format_exc()), err=True, nl=False)
        sys.exit(NEGATIVE)
    raise AssertionError  # Typer has ended the process
