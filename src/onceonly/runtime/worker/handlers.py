"""Handlers as one loop of a worker runs them: within the time budget of a unit, and marked in the shared counters.

Slow handlers never hold a long transaction. The supervisor reads the mark when this process has died: it names the message
whose handler was running.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from onceonly.model.errors import BudgetExceeded, HandlerStuck
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Delivery, Failure, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.model.retry import RetryDecision
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Timer
from onceonly.runtime.processes.counters import CounterRow
from onceonly.runtime.worker.alone import GateMember
from onceonly.runtime.worker.growth import WaitSample, WaitSampler

_Decided = TypeVar("_Decided")


class LoopHandlers:
    """The only wrapper between the algorithm and the endpoint's handlers, or their observer.

    `budget` is in seconds, for each unit: units may run side by side. A unit's first message always runs; what is left when the
    time is used raises BudgetExceeded. Nothing is marked without a `row` of the shared counters.
    """

    def __init__(  # noqa: PLR0913 - what it has from its loop, by name
        self,
        handlers: Handlers,
        budget: float,
        timer: Timer,
        *,
        endpoint: str,
        row: CounterRow | None = None,
        presence: GateMember | None = None,
        sampler: WaitSampler | None = None,
    ) -> None:
        """Enclose these handlers, in the process of this row; `sampler` is that of a worker that may grow.

        What runs alone by `presence` may be marked already, together with its record.
        """
        self._handlers = handlers
        self._budget = budget
        self._timer = timer
        self._until: WeakKeyDictionary[Resources, float] = WeakKeyDictionary()
        self._endpoint = endpoint
        self._row = row
        self._presence = presence or GateMember()
        self._attempts: dict[Identity, int] = {}
        self._sampler = sampler
        self._sample = WaitSample()

    @property
    def waited(self) -> float:
        """How long, in seconds, the handlers of this batch waited for something else than the store, as far as is known."""
        return self._sample.seconds

    def begin_batch(self) -> None:
        """Drop the attempt counts of the batch before: a dead letter that is sent again starts from zero."""
        self._attempts.clear()
        self._sample.begin_batch()

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read it, and store how often it has failed: the highest count of its copies in this batch."""
        message = self._handlers.read(delivery)
        if delivery.attempts and not isinstance(message, Unreadable):
            self._attempts[message.identity] = max(delivery.attempts, self._attempts.get(message.identity, 0))
        return message

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Group them as the handlers do."""
        return self._handlers.batches(messages)

    def runs_alone(self, message: Message) -> bool:
        """Ask the handlers."""
        return self._handlers.runs_alone(message)

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Handle it, or raise BudgetExceeded when this unit has used its time."""
        return await self._in_time(resources, (message,), lambda: self._handlers.handle(message, resources, attempt, response))

    async def handle_batch(
        self,
        messages: Sequence[Message],
        resources: Resources,
        attempts: Sequence[str],
        responses: Sequence[Response | None],
    ) -> Sequence[Decision]:
        """Handle them. When the process dies, several are marked, so none of them is counted: each runs alone next."""
        return await self._in_time(
            resources, messages, lambda: self._handlers.handle_batch(messages, resources, attempts, responses)
        )

    async def _in_time(
        self, resources: Resources, messages: Sequence[Message], handle: Callable[[], Awaitable[_Decided]]
    ) -> _Decided:
        now = self._timer.seconds()
        if now >= self._until.setdefault(resources, now + self._budget):
            raise BudgetExceeded("the time budget of the unit is used")
        if self._sampler is None:
            return await self._mark(messages, handle)
        self._sampler.enter(self._sample, resources)
        try:
            return await self._mark(messages, handle)
        finally:
            self._sampler.leave(self._sample)

    async def _mark(self, messages: Sequence[Message], handle: Callable[[], Awaitable[_Decided]]) -> _Decided:
        """Handle them, marked in the shared counters."""
        row = self._row
        if row is None:
            return await handle()
        marks = [(claim_key(self._endpoint, each.identity), self._attempts.get(each.identity, 0)) for each in messages]
        entered = () if self._presence.is_marked else marks
        for mark in entered:
            row.enter(*mark)
        try:
            return await handle()
        except HandlerStuck:
            if len(marks) == 1:
                row.is_stuck(*marks[0])
            raise
        finally:
            for mark in entered:
                row.leave(*mark)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Judge as the handlers do."""
        return self._handlers.verdict(message, failure, attempts=attempts, history=history)
