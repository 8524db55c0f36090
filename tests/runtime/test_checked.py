"""A broker that is checked again while its endpoint runs."""

from typing import Any

import pytest

from onceonly.model.errors import CommitFailed, OnceOnlyError, QueueMissing, SetupError, Unsafe
from onceonly.runtime.worker.checked import CheckedTransport


class Clock:
    """Seconds that a test decides."""

    now = 0.0

    def seconds(self) -> float:
        """Return them."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class Queue:
    """A transport that always receives nothing."""

    traits = send = ack = release = extend = declare = depth = None

    async def receive(self, limit: int, wait: float) -> tuple[Any, ...]:
        """Receive."""
        return ()


async def test_a_setting_that_changes_stops_receiving_until_it_is_corrected() -> None:
    """It is asked every 30 seconds, and every second while it is wrong. An outage of the check stops nothing."""
    clock, asked, results = Clock(), [], list[OnceOnlyError | None]()

    async def check() -> float:
        asked.append(clock.now)
        result = results.pop(0)
        if result is not None:
            raise result
        return 30.0

    wrong = SetupError("max_deliver is 5")
    results[:] = [None, None, wrong, CommitFailed("away"), wrong, None, QueueMissing("gone"), None]
    queue: Any = Queue()
    transport = CheckedTransport(queue, check, clock)
    await transport.receive(1, 0)
    await transport.start()
    seen = []
    for clock.now in (29.0, 30.0, 60.0, 60.5, 61.0, 62.0, 63.0, 92.0, 93.0, 94.0):
        try:
            await transport.receive(1, 0)
            seen.append("")
        except Unsafe as error:
            seen.append(str(error))
    said = "max_deliver is 5"
    assert seen == ["", "", said, said, said, said, "", "", "", ""]
    assert asked == [0.0, 30.0, 60.0, 61.0, 62.0, 63.0, 93.0, 94.0]


async def test_a_setting_that_is_wrong_at_the_start_ends_it() -> None:
    """As before there was a second check."""

    async def check() -> float:
        raise SetupError("wrong")

    queue: Any = Queue()
    with pytest.raises(SetupError, match="wrong"):
        await CheckedTransport(queue, check, Clock()).start()
