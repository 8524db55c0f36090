"""The doorbell between commits and the relay of this process: whoever commits rings, in any thread, and goes on at once."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from onceonly.model.identity import Identity

Hear = Callable[[Sequence[Identity]], None]


class Doorbell:
    """One endpoint's. Losing a ring costs time only: what was committed is found by the next look into the store."""

    def __init__(self) -> None:
        self._listening: list[tuple[asyncio.AbstractEventLoop, Hear]] = []

    @property
    def is_heard(self) -> bool:
        """Whether somebody listens, in a loop that is not closed."""
        return any(not loop.is_closed() for loop, _ in self._listening)

    @contextmanager
    def listen(self, hear: Hear) -> Iterator[None]:
        """Let `hear` be called in this event loop, with the identities of records that may be committed."""
        entry = (asyncio.get_running_loop(), hear)
        self._listening.append(entry)
        try:
            yield
        finally:
            self._listening.remove(entry)

    def ring(self, identities: Sequence[Identity]) -> None:
        """Tell one listener, the last that came; nobody, when nobody listens. Raises nothing, waits for nothing."""
        for loop, hear in reversed(tuple(self._listening)):
            try:
                loop.call_soon_threadsafe(hear, identities)
            except RuntimeError:  # that loop is closed
                continue
            return
