"""The audit begins when the queues have come to rest: a broker notices the end of a process a little later."""

from onceonly.demo.run import until_quiet
from onceonly.model.errors import CommitFailed
from onceonly.ports.transport import Depth

EMPTY, HELD = Depth(waiting=0, held=0, delayed=0), Depth(waiting=0, held=1, delayed=0)


class Settling:
    """A stage whose queue is seen as told, one look after the other; the last one stays."""

    def __init__(self, *looks: Depth | None) -> None:
        self.looks = list(looks)
        self.seen = 0

    async def drain_sink(self) -> None:
        """Take nothing."""

    async def depths(self) -> dict[str, Depth]:
        """Give the next look; None is a server that is away."""
        look = self.looks[min(self.seen, len(self.looks) - 1)]
        self.seen += 1
        if look is None:
            raise CommitFailed("away")
        return {"ledger": EMPTY, "sink": look}


async def test_a_leaving_process_is_waited_for() -> None:
    """And a server that is away at the moment."""
    stage = Settling(HELD, None, HELD, EMPTY)
    await until_quiet(stage)
    assert stage.seen == 4


async def test_what_is_left_over_is_not_waited_for_without_end() -> None:
    """The audit tells of it."""
    stage = Settling(HELD)
    await until_quiet(stage, patience=0.05)
    assert stage.seen >= 2
