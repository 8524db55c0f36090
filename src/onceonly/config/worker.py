"""How a worker works: sizes and times, checked when they are made."""

from msgspec import Struct

from onceonly.model.errors import SetupError

MAX_BATCH = 10_000


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """The worker's sizes, and its times in seconds. Raises SetupError that lists all problems.

    A unit has at most `batch_size` messages. `concurrency` batches are handled at once. For each of them, up to seven more
    are dispatched and finished at the same time. Handlers of a unit start until `budget` is used up. A stop waits `grace` for
    messages in progress. One receive waits `wait` for a first message.
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
        """List the problems. Empty if there are none."""
        rules = (
            (1 <= self.batch_size <= MAX_BATCH, f"batch_size must be between 1 and {MAX_BATCH}, not {self.batch_size}"),
            (self.concurrency >= 1, f"concurrency must be 1 or more, not {self.concurrency}"),
            (self.budget > 0, f"budget must be more than 0 seconds, not {self.budget}"),
            (self.grace >= 0, f"grace must be 0 seconds or more, not {self.grace}"),
            (self.wait > 0, f"wait must be more than 0 seconds, not {self.wait}"),
        )
        return tuple(f"worker: {problem}" for holds, problem in rules if not holds)
