"""The audit begins when the queues have come to rest: a broker notices the end of a process a little later."""

from onceonly.model.errors import CommitFailed
from onceonly.ports.transport import Depth
from onceonly_demo.run import until_quiet

EMPTY, HELD = Depth(waiting=0, held=0, delayed=0), Depth(waiting=0, held=1, delayed=0)


class Settling:
    """A run whose queue has these depths, one after the other. The last one stays."""

    def __init__(self, *found: Depth | None) -> None:
        self.found = list(found)
        self.seen = 0

    async def drain_sink(self) -> None:
        """Take nothing."""

    async def depths(self) -> dict[str, Depth]:
        """Return the next depth. None is a server that is away."""
        depth = self.found[min(self.seen, len(self.found) - 1)]
        self.seen += 1
        if depth is None:
            raise CommitFailed("away")
        return {"ledger": EMPTY, "sink": depth}


async def test_a_leaving_process_is_waited_for() -> None:
    """And a server that is away at the moment."""
    scenario = Settling(HELD, None, HELD, EMPTY)
    await until_quiet(scenario)
    assert scenario.seen == 4


async def test_what_is_left_over_is_not_waited_for_without_end() -> None:
    """The audit tells of it."""
    scenario = Settling(HELD)
    await until_quiet(scenario, patience=0.05)
    assert scenario.seen >= 2
