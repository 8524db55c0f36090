"""What a newer version wrote: it is left to its processes, without a line for every look at it."""

from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import UpgradeRequired
from onceonly.model.message import Message
from onceonly.ports.store import Unit
from onceonly.runtime.worker.batched_delete import WINDOW_SECONDS
from tests.log_events import events
from tests.runtime.harness import SimulatedEndpoint


class OutdatedStore(MemoryStore):
    """Cannot read what concerns the message `needs_upgrade`, the first few times: then somebody upgrades it."""

    failures = 5

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Fail as the class says."""
        if any(message.id == "newer" for message in messages):
            self.failures -= 1
            if self.failures >= 0:
                raise UpgradeRequired("document 'entity/newer' was written by a newer onceonly")
        return await super().begin(messages, isolated=isolated)


async def test_what_is_left_to_a_newer_version_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is counted, the worker waits before it looks again, and other messages between two looks make no lines."""
    caplog.set_level("INFO", "onceonly.worker")
    simulated = SimulatedEndpoint()
    simulated.ports = simulated.ports._replace(store=OutdatedStore(simulated.driver, "shop", clock=simulated.clock))
    await simulated.open("newer", *"abcd")
    worker = await simulated.work(WorkerSettings(batch_size=1, wait=0.05))
    assert simulated.noted() == ["a", "b", "c", "d", "newer"]
    assert (worker.report.needs_upgrade, worker.report.retried, worker.report.dead) == (5, 0, 0)
    assert sum(seconds != WINDOW_SECONDS for seconds in simulated.timer.slept) == 5
    assert events(caplog.records) == ["worker started", "worker stopped"]
