"""How soon the command line is there: which modules a command imports, and which it does not."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from onceonly.cli import commands
from onceonly.cli.app import application
from onceonly.cli.commands import COMMANDS, GROUPS, ListedCommand
from onceonly.model.errors import SetupError
from tests.cli.terminal import Terminal

LIBRARY = ("assembly", "runtime", "endpoint", "algorithms", "adapters", "sql", "documents", "operations", "config")
HEAVY = ("sqlalchemy", "aiosqlite", "onceonly_demo.run", "onceonly_verify", *(f"onceonly.{name}" for name in LIBRARY))
LISTED = ("onceonly.cli.run", "onceonly.cli.status", "onceonly.cli.dead")
"""Some commands."""


def imported(arguments: str, prefixes: tuple[str, ...]) -> list[str]:
    """Run a command in a process of its own, and return the modules with these prefixes that it has imported."""
    code = (
        "import contextlib, io, sys, onceonly.cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    onceonly.cli.main({arguments.split()})\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return [name for name in done.stdout.split() if any(f"{name}.".startswith(f"{prefix}.") for prefix in prefixes)]


def test_a_worker_process_imports_no_commands() -> None:
    """Every child imports its parent's script and its own work; that must not cost it Typer, Rich and all the commands."""
    code = "import sys, onceonly.cli, onceonly.cli.child; print([name for name in ('typer', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", ["--help", "--version", "nothing", "--nothing"])
def test_what_is_about_no_command_imports_neither_commands_nor_the_library(arguments: str) -> None:
    """The list of commands, the version and usage errors come from the command line itself."""
    assert imported(arguments, (*HEAVY, *LISTED)) == []


@pytest.mark.parametrize(
    "arguments",
    [
        "run",
        "run --help",
        "run shop:shop --processes none",
        "dead --help",
        "dead export",
        *(f"{command} --nothing" for command in COMMANDS),
        "demo --nothing",
        *(f"{group} nothing" for group in GROUPS),
    ],
)
def test_a_usage_error_imports_nothing_of_the_library_and_no_other_command(arguments: str) -> None:
    """A command imports what it needs when its options are right."""
    others = tuple(each for each in LISTED if each.rpartition(".")[2] != arguments.split(maxsplit=1)[0])
    assert imported(arguments, (*HEAVY, *others)) == []


def test_verify_is_loaded_when_it_is_called() -> None:
    """It is a plug-in, and the list of commands has its text."""
    assert imported("verify --help", ("onceonly_verify.command", *LISTED)) == ["onceonly_verify.command"]


def test_the_list_has_each_command_with_the_text_of_its_own_help() -> None:
    """The texts stand twice in the source. They are sorted by hand: plug-ins are before the groups."""
    commands = application().commands
    assert list(commands) == [*COMMANDS, "dashboard", "demo", "verify", *GROUPS]
    for name, command in commands.items():
        assert isinstance(command, ListedCommand)
        own = command.load()
        assert isinstance(own, TyperGroup) == (name in GROUPS)
        assert own.help is not None
        assert command.describe() == " ".join(own.help.partition("\n\n")[0].split()), name


def test_a_plug_in_of_another_project_is_loaded_when_it_is_listed_or_called(
    onceonly: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot be loaded does not stop other commands."""
    installed = [
        EntryPoint("greet", "tests.cli.test_start:greet", commands.GROUP),
        EntryPoint("torn", "onceonly_of_nobody:torn", commands.GROUP),
    ]
    monkeypatch.setattr(commands, "entry_points", lambda group: installed if group == commands.GROUP else [])
    assert onceonly("greet").out == "hello\n"
    assert onceonly("metrics", "alerts").code == 0
    torn = onceonly("torn")
    assert torn.code == 2
    assert torn.error.startswith("error: command 'torn' of onceonly_of_nobody:torn cannot be loaded")
    assert onceonly("--help").error == torn.error
    installed.pop()
    assert "Greet whoever asks." in onceonly("--help").out


def greet() -> None:
    """Greet whoever asks."""
    typer.echo("hello")


def test_a_command_that_is_not_installed_names_its_distribution(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed all the same."""
    monkeypatch.setattr(commands, "entry_points", lambda **_: [])
    missing = application().commands["verify"]
    assert isinstance(missing, ListedCommand)
    command = missing.load()
    assert isinstance(command, TyperCommand)
    assert command.help == missing.describe()
    with pytest.raises(SetupError, match="onceonly-verify"):
        command.main(["--anything"], standalone_mode=False)
    assert "Requires the distribution onceonly-verify." in " ".join(onceonly("--help").out.replace("│", "").split())
