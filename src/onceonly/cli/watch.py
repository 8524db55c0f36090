"""Looking again and again: one view on a terminal that is drawn anew, or one line of JSON for each look."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Self, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from onceonly.cli.output import answers, write
from onceonly.formats.escaping import escape, to_json
from onceonly.model.errors import OnceOnlyError, SetupError

_Looked = TypeVar("_Looked")
Look = Callable[[], Awaitable[_Looked]]


class WatchScreen:
    """Redraws each report in place. Without a terminal each one goes below the last."""

    def __init__(self) -> None:
        self._console = answers()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        self._context.__enter__()
        return self

    def __exit__(self, *ending: object) -> None:
        self._context.__exit__(None, None, None)

    @property
    def _context(self) -> AbstractContextManager[object]:
        return self._live if self._live is not None else nullcontext()

    def show(self, *parts: RenderableType) -> None:
        """Show this instead of what was there."""
        now = Text(datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"), style="dim")
        if self._live is not None:
            self._live.update(Group(now, *parts), refresh=True)
        else:
            self._console.print(now, *parts, sep="\n")


async def watch_as_json(look: Look[_Looked], every: float, *, looks: int | None = None) -> None:
    """Print what each look gives as one line; a look that fails is a line with `error`. Until cancelled, or this many `looks`.

    Raises SetupError: another look would find the same.
    """
    async for seen in _looking(look, every, looks):
        line = {"error": f"{seen} ({type(seen).__name__})"} if isinstance(seen, OnceOnlyError) else seen
        write(to_json(line) + "\n")


async def watch_on_screen(
    look: Look[_Looked], draw: Callable[[_Looked], list[RenderableType]], every: float, *, looks: int | None = None
) -> None:
    """Draw what each look gives; an error is shown below the last result. As `watch_as_json`."""
    last: list[RenderableType] = []
    with WatchScreen() as screen:
        async for seen in _looking(look, every, looks):
            if isinstance(seen, OnceOnlyError):
                screen.show(*last, Text(escape(f"error: {seen}"), style="bold red"))
            else:
                last = draw(seen)
                screen.show(*last)


async def _looking(look: Look[_Looked], every: float, looks: int | None) -> AsyncIterator[_Looked | OnceOnlyError]:
    while looks is None or looks > 0:
        try:
            yield await look()
        except SetupError:
            raise
        except OnceOnlyError as error:
            yield error
        looks = None if looks is None else looks - 1
        if looks != 0:
            await asyncio.sleep(every)
