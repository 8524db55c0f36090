"""All commands, put together, and how they end."""

import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from onceonly.cli.hints import pasteable
from onceonly.cli.output import NEGATIVE, SETUP, complain
from onceonly.cli.plugins import add_plugins, plugin_names
from onceonly.formats.escaping import escape
from onceonly.model.errors import OnceOnlyError, SetupError

COMMANDS = {
    "run": "onceonly.cli.run",
    "relay": "onceonly.cli.relay",
    "send": "onceonly.cli.send",
    "status": "onceonly.cli.status",
    "dashboard": "onceonly.cli.dashboard",
    "janitor": "onceonly.cli.janitor",
    "plan": "onceonly.cli.plan",
    "demo": "onceonly.demo.command",
}
"""Where the function of each command is, under the same name."""
GROUPS = {
    "dead": ("onceonly.cli.dead", "onceonly.cli.dead_actions", "onceonly.cli.dead_files"),
    "schema": ("onceonly.cli.schema",),
    "topology": ("onceonly.cli.topology",),
    "metrics": ("onceonly.cli.monitoring",),
}
"""Where the commands of each group are. The first module has them as `app`, and the others add theirs to it."""


def _show_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        typer.echo(f"onceonly {version('onceonly')}")
        raise typer.Exit


def application(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command that these arguments name, or with all where they name none.

    All of them import most of the library, which takes longer than many a command.
    """
    app = typer.Typer(
        name="onceonly",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(onceonly)
    known, first_word = {*COMMANDS, *GROUPS}, arguments[0] if arguments else ""
    names_one = first_word in known or first_word == "--version" or first_word in plugin_names()
    asked = {first_word} if names_one else known
    for name, module in COMMANDS.items():
        if name in asked:
            app.command(name)(getattr(import_module(module), name))
    for name, modules in GROUPS.items():
        if name in asked:
            first, *_ = [import_module(module) for module in modules]
            app.add_typer(first.app, name=name)
    return app


def onceonly(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True, expose_value=False)
    ] = False,
) -> None:
    """Run, inspect and maintain endpoints: message handlers whose effects happen exactly once."""


def run_commands(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run what the arguments say (default: those of this process), and end the process."""
    given = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        app = application(given)
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
