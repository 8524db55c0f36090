"""The commands by name: what their list shows, and the modules that are imported when a command is called."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points, version
from inspect import getdoc
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from onceonly.model.errors import SetupError

_URL = re.compile(r"[^\s'\"(]*(?:://|@).*", re.DOTALL)

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--store", envvar="ONCEONLY_STORE", metavar="URL", help="Store URL [default: the endpoint's]."),
]
TransportOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--transport", envvar="ONCEONLY_TRANSPORT", metavar="URL", help="Transport URL [default: the endpoint's]."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
HealthOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--health",
        envvar="ONCEONLY_HEALTH",
        metavar="HOST:PORT",
        help="Serve GET /live, /ready and /metrics here. A port alone binds to localhost.",
    ),
]
GROUP = "onceonly.commands"
_ELSEWHERE = {
    "dashboard": ("onceonly-dashboard", "Serve a web page with the state of endpoints."),
    "demo": ("onceonly-demo", "Count the miles of real flights exactly once while processes are killed."),
    "verify": (
        "onceonly-verify",
        "Explore every interleaving of the shipping algorithms in small worlds, with crashes, duplicates and lost answers.",
    ),
}
"""Commands that this project ships in a distribution of their own: its name, and the first paragraph of the command's help."""
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


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
    "leave": CommandSource(
        "Show what must be gone before the library can be removed from endpoints, and when it is.", ("onceonly.cli.leave",)
    ),
    "janitor": CommandSource(
        "Run all clean-up tasks now, even if they are not due. `onceonly run` and `onceonly relay` run them automatically.",
        ("onceonly.cli.janitor",),
    ),
    "plan": CommandSource(
        "Estimate the size of deduplication data, and the cost of deleting it, or of storing it on documents.",
        ("onceonly.cli.plan",),
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
    "retention": CommandSource(
        "Show and change for how long the claims of an endpoint are kept.", ("onceonly.cli.retention",), is_group=True
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


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogLevelOption = Annotated[
    LogLevel, typer.Option(help="Lowest level to log. At debug, each run of a handler is logged with its duration.")
]


class Component(StrEnum):
    STORE = "store"
    TRANSPORT = "transport"
    DOCUMENTS = "documents"
    BLOBS = "blobs"
    HTTP = "http"
    JOURNAL = "journal"


def plugins() -> list[ListedCommand]:
    """Return the commands of other distributions, sorted, and those of this project that are not installed.

    They are imported when they are called. Those of other projects are imported when they are listed, too.
    """
    installed = {each.name: each for each in entry_points(group=GROUP)}
    return [_installed(installed[name]) if name in installed else _missing(name) for name in sorted({*installed, *_ELSEWHERE})]


def _installed(point: EntryPoint) -> ListedCommand:
    _, text = _ELSEWHERE.get(point.name, ("", ""))
    return ListedCommand(point.name, lambda: text or getdoc(_load(point)) or "", lambda: loaded(point.name, _load(point)))


def _load(point: EntryPoint) -> Callable[..., Any]:
    """Import the function of a plug-in. Raises SetupError."""
    try:
        command: Callable[..., Any] = point.load()
    except (ImportError, AttributeError) as error:
        raise SetupError(
            f"command {point.name!r} of {point.value} cannot be loaded: {error}. Repair or uninstall that package"
        ) from error
    return command


def _missing(name: str) -> ListedCommand:
    distribution, words = _ELSEWHERE[name]
    text = f"{words} Requires the distribution {distribution}."

    def missing(_arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        release = version("onceonly")
        raise SetupError(
            f"`onceonly {name}` is in the distribution {distribution} {release}, which is not installed: in a clone, run "
            f"pip install ./packages/{distribution}"
        )

    return ListedCommand(name, lambda: text, lambda: loaded(name, missing, context_settings=_ANYTHING, help=text))
