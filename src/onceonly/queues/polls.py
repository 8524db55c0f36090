"""When to look into a queue whose broker does not report new messages: after growing pauses, or when this process sends one."""

import asyncio

__all__ = ["Polls", "Wakes"]

SHORTEST_PAUSE_SECONDS = 0.02
"""The first pause between two looks at an empty queue. Each is twice as long as the one before, up to a limit."""


class Wakes:
    """Wakes receivers of this process when it has put something into their queue."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def count(self, queue: str) -> int:
        """Return how often a queue was woken. Ask before looking into it."""
        return self._counts.get(queue, 0)

    def wake(self, queue: str) -> None:
        self._counts[queue] = self.count(queue) + 1
        for event in self._waiting.get(queue, ()):
            event.set()

    async def wait(self, queue: str, known: int, seconds: float) -> bool:
        """Wait until a queue has been woken more often than `known`, or the time is over. Return whether it was woken."""
        if self.count(queue) != known:
            return True
        event = asyncio.Event()
        waiting = self._waiting.setdefault(queue, set())
        waiting.add(event)
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
        finally:
            waiting.discard(event)
        return True


class Polls:
    """The looks of one receiver into one queue. Pauses last `longest` seconds at most, and go on from call to call."""

    def __init__(self, wakes: Wakes, queue: str, longest: float) -> None:
        self._wakes = wakes
        self._queue = queue
        self._longest = longest
        self._pause = SHORTEST_PAUSE_SECONDS / 2
        self._known = 0
        self.next = float("-inf")
        """When to look again, as a time of the event loop."""

    def begin(self) -> None:
        """Note that a look begins: what is sent from now on wakes the next wait."""
        self._known = self._wakes.count(self._queue)

    def end(self, *, found: bool) -> None:
        """Note what the look has found, and choose the next pause."""
        self._pause = SHORTEST_PAUSE_SECONDS if found else min(2 * self._pause, self._longest)
        self.next = asyncio.get_running_loop().time() + (0 if found else self._pause)

    async def wait(self, end: float, *, at_most_until: float = float("inf")) -> bool:
        """Wait until it is time to look, or until `end`, as times of the event loop. Return false at the end."""
        clock = asyncio.get_running_loop().time
        at = min(self.next, at_most_until)
        left = min(at, end) - clock()
        if at > clock() and await self._wakes.wait(self._queue, self._known, max(0.0, left)):
            self._pause = SHORTEST_PAUSE_SECONDS
            return True
        return at <= clock()
