"""The checker's driver: it carries nothing out, it hands every operation to whoever steps the coroutine."""

from collections.abc import Generator, Hashable
from types import coroutine
from typing import Any, NamedTuple

from onceonly.adapters.memory.world import PortOperation, Raises


class HandlerChoice(NamedTuple):
    """A handler's run, as the checker sees it: nothing of it is visible, so only its end is chosen.

    `run` is the message's key, and its attempt count when the handler began. None for one of several messages: if the process
    ends now, nobody can tell which of them did it.
    """

    name: str
    run: tuple[bytes, int] | None = (b"", 0)


Call = PortOperation | HandlerChoice


@coroutine
def ask(call: Call) -> Generator[Call, Any, Any]:
    """Hand a call to the checker; give or raise the outcome it answers."""
    outcome = yield call
    if isinstance(outcome, Raises):
        raise outcome.error()
    return outcome


class CheckerDriver:
    """A driver whose operations are decided by the checker. Names are fresh for each delivery, and the same in every replay."""

    def __init__(self, name: Hashable) -> None:
        """Name units and attempts after `name`, which no other run of the program has."""
        self.marks: list[PortOperation] = []
        """The operations done at once since the last call; none of them waits or answers."""
        self.now = 0
        """What the world's clock shows with the latest answer; 0 where no time passes."""
        self.skew = 0
        """By how many milliseconds the clock of this run differs."""
        self.has_read_clock = False
        """Whether the program read the clock since the latest answer."""
        self.has_failed = False
        """Whether a call raised."""
        self.name = name
        """What names the run, and so its process."""
        self._count = 0

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        try:
            return await ask(operation)
        except Exception:
            self.has_failed = True
            raise

    async def choose(self, name: str, run: tuple[bytes, int] | None = (b"", 0)) -> Any:
        """Ask how the handler of this message ends."""
        return await ask(HandlerChoice(name, run))

    def at_once(self, operation: PortOperation) -> None:
        """Leave a note for the checker, which applies it before anything else happens."""
        self.marks.append(operation)

    def read_clock(self) -> int:
        """Return what the clock of this run shows."""
        self.has_read_clock = True
        return self.now + self.skew

    def token(self) -> tuple[Hashable, int]:
        self._count += 1
        return (self.name, self._count)
