"""A broker that is checked again while its endpoint runs."""

from collections.abc import Sequence
from typing import Any

import pytest

from onceonly.model.errors import CommitFailed, OnceOnlyError, QueueMissing, SetupError, UnsafeSettings
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.runtime.worker.transports import CheckedTransport


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

    traits = ack = extend = declare = depth = None

    def __init__(self) -> None:
        self.failure: OnceOnlyError | None = None
        self.answers: tuple[Answer, ...] = ()

    async def receive(self, limit: int, wait: float) -> tuple[Any, ...]:
        """Receive."""
        return ()

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Send."""
        if self.failure is not None:
            raise self.failure
        return self.answers

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release."""


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
    queue = Queue()
    transport = CheckedTransport(queue, check, clock)
    await transport.receive(1, 0)
    await transport.start()
    seen = []
    for clock.now in (29.0, 30.0, 60.0, 60.5, 61.0, 62.0, 63.0, 92.0, 93.0, 94.0):
        try:
            await transport.receive(1, 0)
            seen.append("")
        except UnsafeSettings as error:
            seen.append(str(error))
    said = "max_deliver is 5"
    assert seen == ["", "", said, said, said, said, "", "", "", ""]
    assert asked == [0.0, 30.0, 60.0, 61.0, 62.0, 63.0, 93.0, 94.0]


async def test_a_setting_that_is_wrong_at_the_start_ends_it() -> None:
    """As before there was a second check."""

    async def check() -> float:
        raise SetupError("wrong")

    queue = Queue()
    with pytest.raises(SetupError, match="wrong"):
        await CheckedTransport(queue, check, Clock()).start()


async def test_nothing_is_sent_or_released_while_a_setting_is_wrong() -> None:
    """A broker that drops what it has confirmed may drop a copy, or what is in the queue because of it."""
    clock, results = Clock(), [None, SetupError("max_deliver is 5"), None]

    async def check() -> float:
        if (result := results.pop(0)) is not None:
            raise result
        return 30.0

    transport = CheckedTransport(Queue(), check, clock)
    await transport.start()
    await transport.send(())
    clock.now = 30.0
    for call in (transport.send, transport.release, transport.send):
        with pytest.raises(UnsafeSettings, match="max_deliver is 5"):
            await call(())
    clock.now = 31.0
    await transport.release(())
    assert await transport.send(()) == ()


@pytest.mark.parametrize("answers", [(), (Answer.TAKEN, Answer.UNKNOWN)])
async def test_it_is_checked_at_once_after_an_outage(answers: tuple[Answer, ...]) -> None:
    """The broker may have restarted with other settings. Not more than once in a second."""
    clock, asked = Clock(), list[float]()

    async def check() -> float:
        asked.append(clock.now)
        return 30.0

    queue = Queue()
    transport = CheckedTransport(queue, check, clock)
    await transport.start()
    queue.failure, queue.answers = None if answers else CommitFailed("away"), answers
    for clock.now in (0.5, 0.6, 1.0, 1.5, 2.5):
        try:
            await transport.send(())
        except CommitFailed:
            assert not answers
    assert asked == [0.0, 1.0, 2.5]
    queue.failure, queue.answers = None, ()
    for clock.now in (2.6, 3.5, 10.0):
        await transport.send(())
    assert asked == [0.0, 1.0, 2.5, 3.5]
