"""Handlers as one loop of a worker runs them: within the time budget of a unit, and marked in the shared counters.

Slow handlers never hold a long transaction. The supervisor reads the mark when this process has died: it names the message
whose handler was running.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from onceonly.model.errors import BudgetExceeded, HandlerFailed, HandlerStuck
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Delivery, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.model.retry import UNCOUNTED
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.runtime.environment import Timer
from onceonly.runtime.processes.counters import CounterRow
from onceonly.runtime.worker.growth import WaitSample, WaitSampler
from onceonly.runtime.worker.isolated_runs import GateMember
from onceonly.runtime.worker.run_times import RunTimes

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
        membership: GateMember | None = None,
        sampler: WaitSampler | None = None,
        times: RunTimes | None = None,
    ) -> None:
        """Enclose these handlers, in the process of this row; `sampler` is that of a worker that may grow.

        Their runs are counted in `times`.

        What runs alone by `membership` may be marked already, together with its record.
        """
        self._handlers = handlers
        self.batches, self.runs_alone, self.decide_retry = handlers.batches, handlers.runs_alone, handlers.decide_retry
        self.needs_response = handlers.needs_response
        self._budget = budget
        self._timer = timer
        self._until: WeakKeyDictionary[Resources, float] = WeakKeyDictionary()
        self._endpoint = endpoint
        self._row = row
        self._membership = membership or GateMember()
        self._attempts: dict[Identity, int] = {}
        self._sampler = sampler
        self._sample = WaitSample()
        self._times = times
        self.failed = 0
        """How many runs of handlers failed in this batch, also of those that worked when their unit ran again."""

    @property
    def waited(self) -> float:
        """How long, in seconds, the handlers of this batch waited for something else than the store, as far as is known."""
        return self._sample.seconds

    def begin_batch(self) -> None:
        """Drop the attempt counts of the batch before: a dead letter that is sent again starts from zero."""
        self._attempts.clear()
        self._sample.begin_batch()
        self.failed = 0

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read it, and store how often it has failed: the highest count of its copies in this batch."""
        message = self._handlers.read(delivery)
        if delivery.attempts and not isinstance(message, Unreadable):
            self._attempts[message.identity] = max(delivery.attempts, self._attempts.get(message.identity, 0))
        return message

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
        if self._sampler is not None:
            self._sampler.enter(self._sample, resources)
        if self._times is not None:
            self._times.started(messages, now)
        try:
            return await self._mark(messages, handle)
        except HandlerFailed as error:
            self.failed += error.failure.kind not in UNCOUNTED
            raise
        finally:
            if self._times is not None:
                self._times.ended(len(messages), self._timer.seconds() - now)
            if self._sampler is not None:
                self._sampler.leave(self._sample)

    async def _mark(self, messages: Sequence[Message], handle: Callable[[], Awaitable[_Decided]]) -> _Decided:
        row = self._row
        if row is None:
            return await handle()
        marks = [(claim_key(self._endpoint, each.identity), self._attempts.get(each.identity, 0)) for each in messages]
        entered = () if self._membership.is_marked else marks
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
