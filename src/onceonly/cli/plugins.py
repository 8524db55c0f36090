"""Commands of other distributions: entry points of the group `onceonly.commands`, whose name is the command's."""

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points, version
from inspect import getdoc
from typing import Annotated, Any

import typer

from onceonly.cli.commands import ListedCommand, loaded
from onceonly.model.errors import SetupError

GROUP = "onceonly.commands"
_ELSEWHERE = {
    "verify": (
        "onceonly-verify",
        "Explore every interleaving of the shipping algorithms in small worlds, with crashes, duplicates and lost answers.",
    )
}
"""Commands that this project ships in a distribution of their own: its name, and the first paragraph of the command's help."""
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


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
    distribution, _ = _ELSEWHERE[name]
    text = f"Check the algorithms. Requires the distribution {distribution}."

    def missing(_arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        release = version("onceonly")
        raise SetupError(
            f"`onceonly {name}` is in the distribution {distribution} {release}, which is not installed: in a clone, run "
            f"pip install ./packages/{distribution}"
        )

    return ListedCommand(name, lambda: text, lambda: loaded(name, missing, context_settings=_ANYTHING, help=text))
