"""Processes of this version and of the one before it, with other names for its objects in RabbitMQ, work side by side.

The code of the previous version comes from the history of this repository.
"""

import asyncio
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Depth, Topology
from onceonly.runtime.environment import SystemClock
from tests.adapters.rabbitmq.harness import EVENT, PATIENCE, Broker, ids

PREVIOUS = "4f9f4c9bce7660803de57cee44e068af5e54c9d2"
"""The last commit of the previous version."""
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("previous_process.py")
DELAY = 300
"""Milliseconds."""
HOUR = 3_600_000
SHOP = Topology(endpoint="shop", events=(EVENT,))

pytestmark = pytest.mark.slow


@pytest.fixture(name="code", scope="module")
def code_of_the_previous_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Take it out of the repository's history."""
    archive = subprocess.run(["git", "-C", ROOT, "archive", PREVIOUS, "src"], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"this clone has no commit {PREVIOUS:.7}: fetch the whole history")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


class PreviousProcess:
    """A process of the previous version, told what to do."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def __call__(self, *operation: Any) -> Any:
        """Have it do this; gives its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(operation).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, "the process of the previous version has died"
        return json.loads(line)

    async def end(self) -> None:
        """Kill it, and wait for its end."""
        self._process.kill()
        await self._process.communicate()


class Both:
    """A broker that both versions use, with this version's transport `new` and a process `old`, for one endpoint."""

    def __init__(self, broker: Broker, new: RabbitMQTransport, old: PreviousProcess) -> None:
        self.broker = broker
        self.new = new
        self.old = old

    async def publish(self, name: str, *, delay: int = 0, to: str = "", kind: str = EVENT) -> None:
        """Send from this version."""
        message = Message(id=name, source="till", type=kind, body=b"{}")
        due = SystemClock().now() + delay if delay else 0
        assert await self.new.send([Send(message=message, to=to, due=due)]) == (Answer.TAKEN,)

    async def publish_all(self, *, by: str) -> list[str]:
        """Send a command and an event, prompt and delayed; gives their ids."""
        names = [f"{by}-{what}" for what in ("command", "event", "later command", "later event")]
        for name, to, delay in zip(names, ("shop", "", "shop", ""), (0, 0, DELAY, DELAY), strict=True):
            if by == "new":
                await self.publish(name, to=to, delay=delay)
            else:
                assert await self.old("send", to, EVENT, [name], delay) == ["TAKEN"]
        return names

    async def taken(self, count: int) -> list[str]:
        """Receive in both, until so many have come, and then what else comes."""
        got: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while len(got) < count:
                got += await self._take()
        return sorted(got + await self._take() + await self._take())

    async def _take(self) -> list[str]:
        await self.new.depth("shop", (EVENT,))  # which looks at what is delayed, and harms nothing
        deliveries = await self.new.receive(100, 0.1)
        await self.new.ack(deliveries)
        taken = await self.old("take", 0.1)
        await self.old("ack")
        return ids(deliveries) + list(taken)


@pytest.fixture(name="tick")
def milliseconds_of_a_tick() -> int:
    """Let delays run ten times as fast."""
    return 100


@pytest.fixture(name="both")
async def both_versions(code: Path, tick: int) -> AsyncIterator[Both]:
    """Begin with nothing declared."""
    async with AsyncExitStack() as stack:
        broker = Broker(stack, levels=3, tick=tick)
        topologies = [Topology(endpoint=name, events=(EVENT, "Other")) for name in ("shop", "audit")]
        new = await broker.transport()
        stack.push_async_callback((await broker.transport()).remove, topologies)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            PROGRAM,
            *(broker.url, "shop", broker.prefix, "3", str(tick)),
            env={"PYTHONPATH": str(code)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        old = PreviousProcess(process)
        stack.push_async_callback(old.end)
        yield Both(broker, new, old)


@pytest.mark.parametrize("declared", ["new", "old", "old new", "new old"])
async def test_what_either_version_sends_arrives_once(declared: str, both: Both) -> None:
    """Commands and events, prompt and delayed, whichever version declared the queue, with consumers of both versions."""
    for version in declared.split():
        if version == "new":
            await both.new.declare([SHOP])
        else:
            await both.old("declare", "shop", [EVENT])
    if "new" not in declared:  # a receiver of this version has declared its queue
        sent = await both.publish_all(by="new") + await both.publish_all(by="old")
        got: list[str] = []
        async with asyncio.timeout(PATIENCE):
            while len(got) < len(sent):
                got += await both.old("take", 0.1)
        got += await both.old("take", 1)
        assert sorted(got) == sorted(sent)
        return
    sent = await both.publish_all(by="new") + await both.publish_all(by="old")
    assert await both.taken(len(sent)) == sorted(sent)


@pytest.mark.parametrize("first", ["new", "old"])
async def test_a_subscriber_of_one_version_may_come_after_the_publisher_of_the_other(first: str, both: Both) -> None:
    """The publisher has used its exchange before, when nobody had subscribed."""
    if first == "new":
        await both.publish("unheard")
        await both.old("declare", "shop", [EVENT])
        await both.publish("heard")
        await both.publish("later", delay=DELAY)
    else:
        await both.old("send", "", EVENT, ["unheard"], 0)
        await both.new.declare([SHOP])
        await both.old("send", "", EVENT, ["heard"], 0)
        await both.old("send", "", EVENT, ["later"], DELAY)
    got: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while len(got) < 2:
            got += await both.old("take", 0.1) if first == "new" else ids(await both.new.receive(100, 0.1))
    assert got == ["heard", "later"]


@pytest.mark.parametrize("tick", [HOUR])
async def test_what_the_previous_version_delays_is_counted_for_its_destination(both: Both) -> None:
    """Of its shared levels: commands and events for this endpoint, not those for another. Several may look at once."""
    await both.new.declare([SHOP, Topology(endpoint="audit", events=("Other",))])
    await both.old("send", "audit", EVENT, ["a", "b"], HOUR)
    await both.old("send", "", "Other", ["c"], HOUR)
    assert await both.new.depth("shop", (EVENT,)) == Depth(waiting=0, held=0, delayed=0)
    await both.old("send", "shop", EVENT, ["mine"], HOUR)
    await both.old("send", "", EVENT, ["heard"], HOUR)
    several = [await both.broker.transport() for _ in range(3)]
    assert (
        await asyncio.gather(*(each.depth("shop", (EVENT,)) for each in several)) == [Depth(waiting=0, held=0, delayed=2)] * 3
    )
    assert await both.new.depth("audit", ("Other",)) == Depth(waiting=0, held=0, delayed=3)


async def test_receivers_of_both_versions_are_counted_by_both(both: Both) -> None:
    """What each of them holds; a receiver that does not answer would count as one."""
    await both.old("declare", "shop", [])
    await both.new.declare([SHOP])
    assert await both.old("send", "shop", EVENT, [str(number) for number in range(6)], 0) == ["TAKEN"] * 6
    held = list(await both.new.receive(2, PATIENCE))
    taken = await both.old("take", PATIENCE)
    async with asyncio.timeout(PATIENCE):  # the server may send what is left to either of them
        while len(held) + len(taken) < 6:
            held += await both.new.receive(100, 0.1)
            taken += await both.old("take", 0.1)
    other = await both.broker.transport()
    assert await other.depth("shop") == Depth(waiting=0, held=6, delayed=0)
    assert await both.old("depth", "shop") == [0, 6, 0]


async def test_ending_a_subscription_ends_that_of_the_previous_version(both: Both) -> None:
    """Prompt and delayed events."""
    await both.old("declare", "shop", [EVENT])
    await both.new.declare([SHOP])
    await both.new.declare([Topology(endpoint="shop", gone=(EVENT,))])
    sent = await both.publish_all(by="new") + await both.publish_all(by="old")
    assert await both.taken(4) == sorted(name for name in sent if name.endswith("command"))
