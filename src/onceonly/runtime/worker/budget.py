"""The time budget of a unit: slow handlers never hold a long transaction."""

from weakref import WeakKeyDictionary

from onceonly.model.errors import NotNow
from onceonly.model.message import Delivery, Failure, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.model.retry import Verdict
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Timer


class Budgeted:
    """Handlers that leave the rest of a unit for later once its time is used; its first message always runs.

    Units may run side by side: each has a budget of its own.
    """

    def __init__(self, handlers: Handlers, budget: float, timer: Timer) -> None:
        """Give each unit `budget` seconds."""
        self._handlers = handlers
        self._budget = budget
        self._timer = timer
        self._until: WeakKeyDictionary[Resources, float] = WeakKeyDictionary()

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read as ever."""
        return self._handlers.read(delivery)

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Handle it, or raise NotNow when this unit has used its time."""
        now = self._timer.seconds()
        if now >= self._until.setdefault(resources, now + self._budget):
            raise NotNow("the unit has used its time")
        return await self._handlers.handle(message, resources, attempt, response)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> Verdict:
        """Judge as ever."""
        return self._handlers.verdict(message, failure, attempts=attempts, history=history)
