"""The loop of the page about hosts runs, and is short enough to be copied."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.docs.test_documentation import snippet
from tests.endpoint.hosted_harness import TWICE, rows, sql_shop

PAGE = ROOT / "docs" / "how-to" / "hosted.md"
MOST_LINES = 15


class LoopMessage:
    """A message of a client library, with the names that the page uses."""

    def __init__(self, queue: "LoopQueue", name: str) -> None:
        """Wait in the queue."""
        self._queue = queue
        self.body, self.message_id, self.headers = b'{"id":"%s"}' % name.encode(), name, {"ce-type": "Order"}
        self.delivery_count = 0
        self.delays: list[float] = []

    async def ack(self) -> None:
        """Leave the queue."""
        self._queue.acked.append(self.message_id)

    async def nack(self, delay: float) -> None:
        """Wait again."""
        self.delays.append(delay)
        self._queue.waiting.append(self)


class LoopQueue:
    """What the loop iterates over."""

    def __init__(self, *names: str) -> None:
        """Hold a message for each name."""
        self.waiting = [LoopMessage(self, name) for name in names]
        self.acked: list[str] = []

    async def __aiter__(self) -> AsyncIterator[LoopMessage]:
        """Deliver what waits, and count it."""
        while self.waiting:
            message = self.waiting.pop(0)
            message.delivery_count += 1
            yield message


async def test_the_loop_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are acknowledged, and one whose body is wrong is a dead letter. Nothing is returned to the queue without end."""
    loop = snippet(PAGE, "# loop.py")
    assert len(loop.strip().splitlines()) <= MOST_LINES
    store = f"sqlite:///{tmp_path}/store.db"
    shop = sql_shop(store, f"sqlite:///{tmp_path}/queue.db", retry=TWICE)
    module: dict[str, Any] = {}
    monkeypatch.setitem(__import__("sys").modules, "shop", type("shop", (), {"shop": shop}))
    exec(compile(loop, "loop.py", "exec"), module)  # noqa: S102 - the page's program
    queue = LoopQueue("a", "b", "a", "wrong")
    queue.waiting[-1].body = b"{"
    await module["consume"](queue)
    assert sorted(queue.acked) == ["a", "a", "b", "wrong"]
    assert await rows(store) == ["a", "b"]
