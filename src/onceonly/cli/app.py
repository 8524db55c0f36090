"""All commands, put together, and how they end."""

import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_group

from onceonly.cli.commands import COMMANDS, GROUPS, CommandGroup, listed, plugins
from onceonly.cli.output import NEGATIVE, SETUP, print_error, replace_unwritable
from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly.model.escaping import escape


def _show_version(asked: bool) -> None:  # noqa: FBT001 - as Typer calls it
    if asked:
        typer.echo(f"onceonly {version('onceonly')}")
        raise typer.Exit


def application() -> TyperGroup:
    """Return the application: all commands as they are listed. The one that is called is imported when it is called."""
    app = typer.Typer(
        name="onceonly",
        cls=CommandGroup,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(onceonly)
    group = get_group(app)
    for name, source in COMMANDS.items():
        group.add_command(listed(name, source))
    for plugin in plugins():
        if plugin.name not in GROUPS:
            group.commands.setdefault(str(plugin.name), plugin)
    for name, source in GROUPS.items():
        group.add_command(listed(name, source))
    return group


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
    replace_unwritable()
    try:
        application()(given, prog_name="onceonly")
    except SetupError as error:
        print_error(_pasteable(str(error), given))
        sys.exit(SETUP)
    except OnceOnlyError as error:
        print_error(f"{_pasteable(str(error), given)} ({type(error).__name__})")
        sys.exit(NEGATIVE)
    except OSError as error:  # a full disk, a file that may not be read
        print_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        sys.exit(SETUP)
    except UnicodeEncodeError:
        if not all(map(_is_utf8, given)):
            print_error("an argument is not UTF-8, or the locale is not: set LC_ALL=C.UTF-8, or PYTHONUTF8=1")
            sys.exit(SETUP)
        _report_bug()
    except Exception:  # noqa: BLE001 - a bug
        _report_bug()
    raise AssertionError  # Typer has ended the process


def _report_bug() -> NoReturn:
    """Print the traceback. It may quote a message, so it must not reach the terminal as it is."""
    sys.stderr.write(escape(traceback.format_exc()))
    sys.exit(NEGATIVE)


def _is_utf8(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pasteable(text: str, arguments: Sequence[str]) -> str:
    from onceonly.cli.hints import pasteable

    return pasteable(text, arguments)
