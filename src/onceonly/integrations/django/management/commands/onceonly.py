"""`manage.py onceonly ...`: the command line of onceonly, for the endpoints of this project."""

import argparse
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from onceonly.model.errors import SetupError

_ENDPOINTS = "onceonly.integrations.django.endpoints"
_IS_PLACE = re.compile(r"[\w.]+:\w[\w.-]*|\w[\w+.-]*://.*").fullmatch
_OF_DJANGO = ("--settings", "--pythonpath")
_TAKERS = frozenset({"place", "places", "endpoint", "endpoints", "target", "targets"})
"""The names of arguments by which commands take endpoints."""


class Command(BaseCommand):
    """Passes its arguments on, and names the endpoints of `ONCEONLY["ENDPOINTS"]` where a command needs some."""

    help = "Run, inspect and maintain the endpoints of this project: `manage.py onceonly --help`."

    def run_from_argv(self, argv: list[str]) -> None:
        """Leave all options to onceonly, but for those that Django has handled already."""
        self.handle(arguments=list(_without_django(argv[2:])))

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what `call_command` is given."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the command, which ends the process. It is a program of its own, and so found by its name."""
        import_module("onceonly.cli").main(with_endpoints(options["arguments"]))


def with_endpoints(arguments: Sequence[str]) -> list[str]:
    """Add the endpoints of the project behind the name of a command that takes some, unless one is given.

    Raises CommandError if there is none.
    """
    given, at = list(arguments), 0
    command: Any = import_module("onceonly.cli.app").application()
    while at < len(given) and (commands := getattr(command, "commands", None)) is not None:
        if given[at] not in commands:
            return given
        command = _resolved(command, given[at])
        at += 1
    takers = [each for each in getattr(command, "params", ()) if each.param_type_name == "argument" and each.name in _TAKERS]
    if not takers or any(map(_IS_PLACE, given[at:])) or {"--help", "-h"} & set(given):
        return given
    names = _names()
    if takers[0].nargs == 1 and len(names) > 1:
        raise CommandError(f"this command is about one endpoint: name it, such as {names[0]}")
    return [*given[:at], *names, *given[at:]]


def _resolved(group: Any, name: str) -> Any:
    """Return a command of a group, loaded."""
    found = group.commands[name]
    return found.load() if hasattr(found, "load") else found


def _names() -> list[str]:
    from onceonly.integrations.django.endpoints import load_endpoints  # noqa: PLC0415 - it imports the project's

    try:
        names = [f"{_ENDPOINTS}:{endpoint.name}" for endpoint in load_endpoints()]
    except SetupError as error:
        raise CommandError(str(error)) from error
    if not names:
        raise CommandError('no endpoint is named: set ONCEONLY = {"ENDPOINTS": ["shop.endpoints:shop"]} in the settings')
    return names


def _without_django(arguments: Sequence[str]) -> Iterator[str]:
    rest = iter(arguments)
    for each in rest:
        if each in _OF_DJANGO:
            next(rest, None)
        elif not each.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            yield each
