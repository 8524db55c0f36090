"""How a worker works: sizes and times, checked when they are made."""

from msgspec import Struct

from onceonly.model.errors import SetupError

MAX_BATCH = 10_000


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """The worker's sizes and times, in seconds. Raises SetupError naming everything that is wrong with them.

    `batch_size` messages at most share one unit; `concurrency` batches are handled at once, while some more for each of them,
    seven at most, are dispatched and finished. Handlers of one unit start as long as `budget` is not used up. A stop waits
    `grace` for what is in flight. `wait` is how long one receive waits for a first message.
    """

    batch_size: int = 100
    concurrency: int = 1
    budget: float = 1.0
    grace: float = 10.0
    wait: float = 0.5

    def __post_init__(self) -> None:
        if wrong := self.problems():
            raise SetupError("; ".join(wrong))

    def problems(self) -> tuple[str, ...]:
        """List what is wrong, in words; empty when all is fine."""
        rules = (
            (1 <= self.batch_size <= MAX_BATCH, f"batch_size must be between 1 and {MAX_BATCH}, not {self.batch_size}"),
            (self.concurrency >= 1, f"concurrency must be 1 or more, not {self.concurrency}"),
            (self.budget > 0, f"budget must be more than 0 seconds, not {self.budget}"),
            (self.grace >= 0, f"grace must be 0 seconds or more, not {self.grace}"),
            (self.wait > 0, f"wait must be more than 0 seconds, not {self.wait}"),
        )
        return tuple(f"worker: {problem}" for holds, problem in rules if not holds)
