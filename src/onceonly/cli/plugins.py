"""Commands of other distributions: entry points of the group `onceonly.commands`, whose name is the command's."""

from collections.abc import Sequence
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from onceonly.model.errors import SetupError

GROUP = "onceonly.commands"
_ELSEWHERE = {"verify": "onceonly-verify"}
"""Commands that this project ships in a distribution of their own."""
_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


def plugin_names() -> set[str]:
    """Return the names of the commands that other distributions have, installed or not."""
    return {*_ELSEWHERE, *(each.name for each in entry_points(group=GROUP))}


def add_plugins(app: typer.Typer, arguments: Sequence[str]) -> None:
    """Add the commands of other distributions that these arguments may be for. The others are not imported.

    Raises SetupError when a plug-in cannot be loaded.
    """
    known = {each.name for each in app.registered_commands}
    plugins = {each.name: each for each in entry_points(group=GROUP)}
    asked = next((each for each in arguments if not each.startswith("-")), "")
    for name in sorted({*plugins, *_ELSEWHERE} - known):
        if asked not in {name, ""}:
            continue
        if name not in plugins:
            _add_missing(app, name)
            continue
        try:
            app.command(name)(plugins[name].load())
        except (ImportError, AttributeError) as error:
            raise SetupError(
                f"command {name!r} of {plugins[name].value} cannot be loaded: {error}. Repair or uninstall that package"
            ) from error


def _add_missing(app: typer.Typer, name: str) -> None:
    distribution = _ELSEWHERE[name]

    @app.command(name, context_settings=_ANYTHING, help=f"Check the algorithms. Requires the distribution {distribution}.")
    def _missing(_arguments: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> None:
        release = version("onceonly")
        raise SetupError(
            f"`onceonly {name}` is in the distribution {distribution} {release}, which is not installed: in a clone, run "
            f"pip install ./packages/{distribution}"
        )
