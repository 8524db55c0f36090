"""How soon the command line is there."""

import subprocess
import sys

import pytest

from onceonly.cli.app import COMMANDS, GROUPS, application


def test_a_worker_process_imports_no_commands() -> None:
    """Every child imports its parent's script; that must not cost it Typer, Rich and all the commands."""
    code = "import sys, onceonly.cli; print([name for name in ('typer', 'rich', 'onceonly.demo') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        ("--version", ("sqlalchemy", "onceonly.cli.run", "onceonly.demo")),
        ("dead --help", ("onceonly.cli.run", "onceonly.cli.dashboard", "onceonly.demo")),
        ("dashboard --help", ("onceonly.cli.run", "onceonly.cli.schema", "onceonly.demo")),
        ("verify --help", ("onceonly.cli.run", "onceonly.cli.dead", "onceonly.demo")),
    ],
)
def test_a_command_imports_no_other_commands(arguments: str, absent: tuple[str, ...]) -> None:
    """All commands import most of the library."""
    code = (
        "import contextlib, io, sys, onceonly.cli\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    onceonly.cli.main({arguments.split()})\n"
        f"print([name for name in {absent} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["-h", "dead"], [], ["nothing"]])
def test_without_a_command_all_are_there(arguments: list[str]) -> None:
    """They are listed in the help, and one that does not exist is compared with all of them."""
    app = application(arguments)
    assert {each.name for each in app.registered_commands} == set(COMMANDS)
    assert {each.name for each in app.registered_groups} == set(GROUPS)
