"""The time budget of a unit: slow handlers never hold a long transaction."""

from onceonly.model.errors import NotNow
from onceonly.model.message import Delivery, Failure, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.retry import Verdict
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.runtime.surroundings import Timer


class Budgeted:
    """Handlers that leave the rest of a unit for later once its time is used; its first message always runs.

    Serves one unit after another, never two at once: every loop of a worker has its own.
    """

    def __init__(self, handlers: Handlers, budget: float, timer: Timer) -> None:
        """Give each unit `budget` seconds."""
        self._handlers = handlers
        self._budget = budget
        self._timer = timer
        self._unit: Resources | None = None
        self._until = 0.0

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read as ever."""
        return self._handlers.read(delivery)

    async def handle(self, message: Message, resources: Resources, attempt: str = "") -> Decision:
        """Handle it, or raise NotNow when this unit has used its time."""
        now = self._timer.seconds()
        if resources is not self._unit:
            self._unit = resources
            self._until = now + self._budget
        elif now >= self._until:
            raise NotNow("the unit has used its time")
        return await self._handlers.handle(message, resources, attempt)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Judge as ever."""
        return self._handlers.verdict(message, failure, attempts=attempts, history=history)
