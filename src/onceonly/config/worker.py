"""How a worker works: sizes and times, checked when they are made."""

from typing import Literal

from msgspec import Struct

from onceonly.model.errors import SetupError

MAX_BATCH = 10_000
PLACES = ("thread", "loop")


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """The worker's sizes, and its times in seconds. Raises SetupError that lists all problems.

    A unit has at most `batch_size` messages. `concurrency` batches are handled at once. For each of them, up to seven more
    are dispatched and finished at the same time. Handlers of a unit start until `budget` is used up. A stop waits `grace` for
    messages in progress. One receive waits `wait` for a first message.

    `def_handlers` says where `def` handlers run: "thread" or "loop". In a thread they may block, and have a time limit. In the
    event loop they cost less, but a handler that blocks stops everything else there. By default they run in the event loop
    under `onceonly run`, where only other handlers use it, and in threads in any other program.

    Without `concurrency` one batch is handled at once, or two if a handler takes a connection: it waits for each of its
    statements. Up to `max_concurrency` smaller ones are handled at once while handlers wait for something else than the store.
    Each needs a database connection. Only SQL servers allow several, and only without entities.
    """

    batch_size: int = 100
    concurrency: int | None = None
    max_concurrency: int = 20
    budget: float = 1.0
    grace: float = 10.0
    wait: float = 0.5
    def_handlers: Literal["thread", "loop"] | None = None

    def __post_init__(self) -> None:
        if wrong := self.problems():
            raise SetupError("; ".join(wrong))

    @property
    def at_once(self) -> int:
        """How many batches are handled at once while no handler waits, as far as these settings say."""
        return self.concurrency or 1

    def problems(self) -> tuple[str, ...]:
        """List the problems. Empty if there are none."""
        rules = (
            (1 <= self.batch_size <= MAX_BATCH, f"batch_size must be between 1 and {MAX_BATCH}, not {self.batch_size}"),
            (self.concurrency is None or self.concurrency >= 1, f"concurrency must be 1 or more, not {self.concurrency}"),
            (self.max_concurrency >= 1, f"max_concurrency must be 1 or more, not {self.max_concurrency}"),
            (self.budget > 0, f"budget must be more than 0 seconds, not {self.budget}"),
            (self.grace >= 0, f"grace must be 0 seconds or more, not {self.grace}"),
            (self.wait > 0, f"wait must be more than 0 seconds, not {self.wait}"),
            (self.def_handlers in (None, *PLACES), f'def_handlers must be "thread" or "loop", not {self.def_handlers!r}'),
        )
        return tuple(f"worker: {problem}" for holds, problem in rules if not holds)
