"""The commands by name: what their list shows, and the modules that are imported when a command is called."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

_URL = re.compile(r"[^\s'\"(]*(?:://|@).*", re.DOTALL)


class CommandSource(NamedTuple):
    """Where a command is: the function of its name in `modules[0]`, or a group with its `app` there.

    `help` is the first paragraph of its own help.
    """

    help: str
    modules: tuple[str, ...]
    is_group: bool = False


COMMANDS = {
    "run": CommandSource(
        "Run endpoints until SIGTERM or Ctrl-C, then finish the messages in work and stop.", ("onceonly.cli.run",)
    ),
    "relay": CommandSource(
        "Send messages that were committed and not sent, until SIGTERM or Ctrl-C. Runs no handlers.", ("onceonly.cli.relay",)
    ),
    "send": CommandSource("Send one message for each line of a file.", ("onceonly.cli.send",)),
    "status": CommandSource(
        "Show the queue, pending records, dead letters and maintenance of each endpoint.", ("onceonly.cli.status",)
    ),
    "dashboard": CommandSource("Serve a web page with the state of endpoints.", ("onceonly.cli.dashboard",)),
    "janitor": CommandSource(
        "Run all clean-up tasks now, even if they are not due. `onceonly run` runs them automatically.",
        ("onceonly.cli.janitor",),
    ),
    "plan": CommandSource(
        "Estimate the size of claims and tokens in this database, and the cost of deleting them.", ("onceonly.cli.plan",)
    ),
    "demo": CommandSource(
        "Count the miles of real flights exactly once while processes are killed.", ("onceonly.demo.command",)
    ),
}
GROUPS = {
    # the first module has the group as `app`, and the others add commands to it
    "dead": CommandSource(
        "List, show, retry, purge, export and import dead letters.",
        ("onceonly.cli.dead", "onceonly.cli.dead_actions", "onceonly.cli.dead_files"),
        is_group=True,
    ),
    "schema": CommandSource(
        "Create, upgrade, print and check tables in databases; create tables, containers and buckets in services.",
        ("onceonly.cli.schema",),
        is_group=True,
    ),
    "topology": CommandSource(
        "Create the queues and subscriptions of endpoints before they run, and remove unused subscriptions.",
        ("onceonly.cli.topology",),
        is_group=True,
    ),
    "metrics": CommandSource("Print alert rules and a dashboard for the metrics.", ("onceonly.cli.monitoring",), is_group=True),
}


class ListedCommand(TyperCommand):
    """A command as the list of commands shows it: with the text that `describe` gives. `load` gives the real one."""

    def __init__(self, name: str, describe: Callable[[], str], load: Callable[[], TyperCommand | TyperGroup]) -> None:
        super().__init__(name, rich_markup_mode="markdown")
        self.describe = describe
        self.load = load


class CommandGroup(TyperGroup):
    """A group of listed commands, of which only the one that is called is loaded."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the group's own options. Usage errors quote no URL."""
        with _hiding_urls():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Call the command that the arguments name. Usage errors quote no URL."""
        with _hiding_urls():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names, for help and completion. Raises SetupError for a plug-in that cannot be loaded."""
        for command in self.commands.values():
            if isinstance(command, ListedCommand):
                command.help = command.describe()
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the arguments name, and load it. Raises SetupError for a plug-in that cannot be loaded."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, ListedCommand) else command, rest


@contextmanager
def _hiding_urls() -> Iterator[None]:
    """Cut usage errors off where they quote a URL, which may hold a password."""
    try:
        yield
    except Exception as error:
        if hasattr(error, "format_message"):  # what Typer shows as a usage error; it exports no class for all of them
            error.message = _URL.sub("URL", error.message)  # type: ignore[attr-defined]
        raise


def listed(name: str, source: CommandSource) -> ListedCommand:
    """Return one of this project's commands for the list."""

    def load() -> TyperCommand | TyperGroup:
        first, *_ = [import_module(module) for module in source.modules]
        return loaded(name, first.app if source.is_group else getattr(first, name))

    return ListedCommand(name, lambda: source.help, load)


def loaded(name: str, command: typer.Typer | Callable[..., Any], **settings: Any) -> TyperCommand | TyperGroup:
    """Return what runs: a function with its options, or a group. `settings` are those of `typer.Typer.command`."""
    app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False)
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name, **settings)(command)
    found = get_group(app).commands[name]
    assert isinstance(found, TyperCommand | TyperGroup)  # noqa: S101 - for the type checker: Typer has made it
    return found
