"""Loops of client libraries on real brokers: when a message comes again, and that its lease is renewed."""

import ast
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NothingArrived
from sqlalchemy import create_engine

from examples.hosts import program
from examples.hosts.harness import ROOT, Wire
from examples.hosts.program import Base
from onceonly import Endpoint, IdentityField
from tests.hosts.test_hosts import HOSTS
from tests.servers.available import need

GUIDES = ROOT / "docs" / "how-to"
LEASING_LOOPS, KAFKA_LOOPS = ("nats_loop", "redis_loop", "sqs_loop"), ("aiokafka_loop", "confluent_loop")
PAGES = {
    "own-loop.md": ("aio_pika_loop", *LEASING_LOOPS),
    "kafka.md": KAFKA_LOOPS,
}
LOOPS = [name for names in PAGES.values() for name in names]
MOST_LINES = 15
SECONDS = 60.0
FIRST_DELAY, EARLY = 2.0, 0.1
"""Seconds of `Retry`'s first delay, and how much earlier a broker's clock may be."""


class ClosedConsumer(Consumer):
    """A consumer that is closed before its topics are deleted: librdkafka crashes on tansu's answer about a deleted topic."""

    opened: ClassVar[list["ClosedConsumer"]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._is_free = Lock()  # no call may be under way in another thread
        self.opened.append(self)

    def consume(self, *arguments: Any) -> list[Message]:
        """Consume, and not while it is closed."""
        with self._is_free:
            return super().consume(*arguments)

    def commit(self, **options: Any) -> Any:
        """Commit, and not while it is closed."""
        with self._is_free:
            return super().commit(**options)

    @classmethod
    def close_all(cls) -> None:
        """Wait for the calls that a cancelled task has left in threads, and close."""
        while cls.opened:
            consumer = cls.opened.pop()
            with consumer._is_free:
                consumer.close()


class Loop(NamedTuple):
    """A program that is not running yet, with its broker and its store."""

    module: Any
    wire: Wire
    store: str

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run its loop next to the block. A cancellation that a driver loses is repeated.

        Up to Python 3.11, `asyncio.wait_for` drops one that comes in the moment in which it ends; redis-py writes with it.
        """
        task = asyncio.create_task(self.module.run())
        try:
            yield
        finally:
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            with suppress(asyncio.CancelledError):
                await task
            await asyncio.to_thread(ClosedConsumer.close_all)


@pytest.fixture
async def loop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loop]:
    """Load the program of a host with a store in a file, and names of its own on the broker."""
    host, server = HOSTS[request.param]
    url = request.getfixturevalue(server) if isinstance(server, str) else need(server)
    prefix, store = f"hosts-{uuid4().hex[:8]}-", f"sqlite:///{tmp_path}/store.db"
    engine = create_engine(store)
    Base.metadata.create_all(engine)
    engine.dispose()
    names = {"STORE": store, "BROKER": url, "ORDERS": f"{prefix}orders", "PLACED": f"{prefix}order-placed"}
    for name, value in names.items():
        monkeypatch.setattr(program, name, value)
    path = f"examples.hosts.{request.param}.exactly_once"
    monkeypatch.delitem(sys.modules, path, raising=False)
    module = import_module(path)
    monkeypatch.delitem(sys.modules, path)
    if hasattr(module, "Consumer"):
        monkeypatch.setattr(module, "Consumer", ClosedConsumer)
    wire = host.wire(url, prefix)
    await wire.prepare()
    try:
        yield Loop(module, wire, store)
    finally:
        await wire.clean()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until this holds."""
    async with asyncio.timeout(SECONDS):
        while not await holds():  # noqa: ASYNC110 - a broker tells nobody
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("loop", LOOPS, indirect=True)
async def test_a_failed_message_comes_again_when_it_is_due(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two retries follow at once. The others wait, and messages that arrive meanwhile do not."""
    runs: dict[str, list[float]] = {"late": [], "other": []}
    is_late = asyncio.Event()

    def report(order_id: str) -> None:
        runs[order_id].append(asyncio.get_running_loop().time())
        if order_id == "late" and not runs["other"]:
            if len(runs["late"]) == 3:
                is_late.set()
            raise ValueError("not before the other")

    monkeypatch.setattr(loop.module, "report", report)

    async def is_done() -> bool:
        events = {event.order_id for event in await loop.wire.events()}
        return events == {"late", "other"} and not await loop.wire.waiting()

    await loop.wire.feed(["late"])
    async with loop.running():
        async with asyncio.timeout(SECONDS):
            await is_late.wait()
        await loop.wire.feed(["other"])
        await until(is_done)
    assert len(runs["other"]) == 1
    assert runs["late"][3] - runs["late"][2] >= FIRST_DELAY - EARLY
    assert len(await loop.wire.events()) == 2


@pytest.mark.parametrize("loop", KAFKA_LOOPS, indirect=True)
async def test_offsets_are_committed_up_to_the_first_message_that_must_come_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process goes on there, and knows those behind it. The three have one partition."""
    may_end = False

    def report(order_id: str) -> None:
        if order_id == "next" and not may_end:
            raise ValueError("not in this process")

    monkeypatch.setattr(loop.module, "report", report)

    async def is_held() -> bool:
        events = {event.order_id for event in await loop.wire.events()}
        return events == {"early", "behind"} and await loop.wire.waiting() == 2

    async def is_done() -> bool:
        return not await loop.wire.waiting()

    await loop.wire.feed(["early", "next", "behind"])
    async with loop.running():
        await until(is_held)
    may_end = True
    async with loop.running():
        await until(is_done)
    assert sorted(event.order_id for event in await loop.wire.events()) == ["behind", "early", "next"]


@pytest.mark.parametrize("loop", KAFKA_LOOPS, indirect=True)
async def test_a_message_comes_again_although_no_offset_can_be_committed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a group is rebalanced. A later commit must not pass a message that was not handled."""
    runs, refused = list[str](), list[object]()

    def report(order_id: str) -> None:
        runs.append(order_id)
        if runs.count("late") == 1 and order_id == "late":
            raise ValueError("not yet")

    def refuse(error: Exception) -> None:
        if runs.count("late") == 1:
            refused.append(error)
            raise error

    async def commit(self: AIOKafkaConsumer, offsets: Any) -> None:
        refuse(CommitFailedError())
        await of_aiokafka(self, offsets)

    def commit_in_thread(self: ClosedConsumer, **options: Any) -> Any:
        refuse(KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION)))
        return of_confluent(self, **options)

    of_aiokafka, of_confluent = AIOKafkaConsumer.commit, ClosedConsumer.commit
    monkeypatch.setattr(loop.module, "report", report)
    monkeypatch.setattr(AIOKafkaConsumer, "commit", commit)
    monkeypatch.setattr(ClosedConsumer, "commit", commit_in_thread)

    async def is_done() -> bool:
        return bool(runs) and not await loop.wire.waiting()

    await loop.wire.feed(["late"])
    async with loop.running():
        await until(is_done)
    assert refused
    assert runs == ["late", "late"]
    assert len(await loop.wire.events()) == 1


class EmptyQueue:
    """A subscription of NATS without messages. `fetch` raises these errors, and then that it is cancelled."""

    def __init__(self, *errors: type[Exception]) -> None:
        self.errors = list(errors)

    async def fetch(self, *_: object, **__: object) -> list[Msg]:
        """Find nothing."""
        raise self.errors.pop(0) if self.errors else asyncio.CancelledError


@pytest.mark.parametrize("loop", ["nats_loop"], indirect=True)
async def test_a_queue_that_stays_empty_does_not_end_the_nats_loop(loop: Loop) -> None:
    """`fetch` raises the client's TimeoutError, and Python's if the answer of the server comes late."""
    queue = EmptyQueue(NothingArrived, TimeoutError)
    with pytest.raises(asyncio.CancelledError):
        await loop.module.consume(queue, None)
    assert not queue.errors


@pytest.mark.parametrize("loop", LEASING_LOOPS, indirect=True)
async def test_the_lease_of_a_message_in_work_is_renewed(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its handler runs. RabbitMQ and Kafka have no leases."""
    shop = Endpoint("shop", store=loop.store, identity=IdentityField("order_id"))
    order = loop.module.PlaceOrder
    renewed, runs = asyncio.Semaphore(0), []

    @shop.handler
    async def wait(placed: order) -> None:  # type: ignore[valid-type]
        runs.append(placed)
        for _ in range(2):
            await renewed.acquire()

    owner, name = next(
        (owner, name)
        for owner, name in (
            (getattr(loop.module, "Group", None), "hold"),
            (getattr(loop.module, "SqsQueue", None), "hide"),
            (Msg, "in_progress"),
        )
        if owner is not None
    )
    original = getattr(owner, name)

    async def renew(*arguments: object) -> None:
        await original(*arguments)
        renewed.release()

    monkeypatch.setattr(owner, name, renew)
    monkeypatch.setattr(loop.module, "shop", shop)

    async def is_done() -> bool:
        return not await loop.wire.waiting() and bool(runs)

    await loop.wire.feed(["long"])
    async with loop.running():
        await until(is_done)
    assert len(runs) == 1


@pytest.mark.parametrize(("page", "name"), [(page, name) for page, names in PAGES.items() for name in names])
def test_the_page_has_the_loop_that_runs(page: str, name: str) -> None:
    """Without its docstring it has at most 15 lines."""
    source = (ROOT / "examples" / "hosts" / name / "exactly_once.py").read_text()
    on_page = (GUIDES / page).read_text()
    helpers = {"Group", "SqsQueue", "renew", "message_of", "put_off"}
    for node in ast.parse(source).body:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if not isinstance(node, kinds) or node.name not in helpers | {"consume"}:
            continue
        text = ast.get_source_segment(source, node) or ""
        assert text in on_page, f"{node.name} of {name} is not on {page} as it is in the example"
        if node.name == "consume":
            lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith('"""')]
            assert len(lines) <= MOST_LINES, "\n".join(lines)
