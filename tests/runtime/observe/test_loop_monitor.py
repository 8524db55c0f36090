"""Blocks of the event loop are logged, while they last, with their place in the code."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Endpoint, WorkerSettings
from onceonly.assembly import open_transport
from onceonly.model.message import Message, Send
from onceonly.runtime.observe import loop_monitor
from onceonly.runtime.observe.loop_monitor import LoopMonitor, monitored_loop, place_of

BLOCKED, OVER = "event loop blocked", "event loop no longer blocked"


class Ear(logging.Handler):
    """Hears what is logged, in whatever thread."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.blocked, self.over = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        self.records.append(record)
        {BLOCKED: self.blocked, OVER: self.over}.get(vars(record)["event"], threading.Event()).set()


@pytest.fixture
def ear() -> Iterator[Ear]:
    """Listen to the library's log."""
    logger, heard = logging.getLogger("onceonly"), Ear()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(heard)
    yield heard
    logger.removeHandler(heard)
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shorter blocks logged, so that tests need not block for long."""
    monkeypatch.setattr(loop_monitor, "LIMIT_SECONDS", 0.3)


async def _enter(monitored: AbstractContextManager[None]) -> None:
    monitored.__enter__()


async def _leave(monitored: AbstractContextManager[None]) -> None:
    monitored.__exit__(None, None, None)


async def until(event: threading.Event) -> None:
    """Wait for an event of another thread."""
    while not event.is_set():  # noqa: ASYNC110 - it belongs to a thread
        await asyncio.sleep(0.01)


async def test_a_block_is_logged_while_it_lasts_and_once(ear: Ear) -> None:
    """With the file and line of the call that blocks, and with the stack. Its end is logged, too."""
    with monitored_loop(), monitored_loop():
        assert ear.blocked.wait(60)  # this blocks
        await until(ear.over)
    said, over = ear.records
    assert said.levelname == "WARNING"
    assert said.place.startswith(f"{__file__}:")
    assert said.place.endswith(" in test_a_block_is_logged_while_it_lasts_and_once")
    assert "assert ear.blocked.wait(60)  # this blocks" in said.traceback
    assert said.seconds >= 0.3
    assert over.seconds >= said.seconds


async def test_a_loop_that_runs_is_not_logged_and_nothing_is_left_at_the_end(ear: Ear) -> None:
    """The thread ends with the last one who needs it."""
    before = threading.enumerate()  # one of an earlier test may still be ending
    with monitored_loop():
        new = [each for each in threading.enumerate() if each not in before]
        (thread,) = [each for each in new if each.name == "onceonly loop monitor"]
        await asyncio.sleep(0)
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
    assert ear.records == []


def test_a_loop_that_nobody_runs_is_not_blocked(monkeypatch: pytest.MonkeyPatch, ear: Ear) -> None:
    """As between two calls of run_until_complete. The thread looks often meanwhile, and a block afterwards is logged."""
    looks = threading.Semaphore(0)

    class Counted(threading.Event):
        """Counts how often it is waited for."""

        def wait(self, timeout: float | None = None) -> bool:
            looks.release()
            return super().wait(timeout)

    monkeypatch.setattr(threading, "Event", Counted)
    monkeypatch.setattr(loop_monitor, "LOOK_SECONDS", 0.05)
    with asyncio.Runner() as runner:
        monitored = monitored_loop()
        runner.run(_enter(monitored))
        for _ in range(20):
            assert looks.acquire(timeout=60)
        assert ear.records == []
        runner.run(_leave(monitored))


async def test_a_process_that_did_not_run_at_all_is_not_taken_for_a_block(monkeypatch: pytest.MonkeyPatch, ear: Ear) -> None:
    """As after SIGSTOP, or on a machine without time to spare: the thread was late itself."""
    now, looks = [0.0], threading.Semaphore(0)

    class Stopped(threading.Event):
        """An event whose wait lets a test decide what time it is."""

        def wait(self, timeout: float | None = None) -> bool:
            looks.release()
            return super().wait(0.001)

    monkeypatch.setattr(loop_monitor.time, "monotonic", lambda: now[0])
    monitor, stopped = LoopMonitor(0.3), Stopped()
    thread = threading.Thread(target=monitor._watch, args=(stopped,))
    thread.start()
    looks.acquire()
    now[0] = 10.0  # the thread finds itself late by all that time
    for _ in range(5):
        looks.acquire()
    stopped.set()
    thread.join(60)
    assert ear.records == []


@dataclass
class Order:
    """A message."""

    id: str


def async_handler(shop: Endpoint, block: Callable[[], object]) -> None:
    """Register a handler that blocks although it is `async def`."""

    @shop.handler
    async def place(_order: Order) -> None:
        block()


def def_handler(shop: Endpoint, block: Callable[[], object]) -> None:
    """Register a `def` handler."""

    @shop.handler
    def place(_order: Order) -> None:
        block()


@pytest.mark.parametrize("register", [async_handler, def_handler])
async def test_a_handler_that_blocks_is_named(register: Callable[..., None], ear: Ear) -> None:
    """An `async def` handler always; a `def` handler where handlers run in the event loop."""
    url, handled = f"memory://{uuid4().hex}", asyncio.Event()
    shop = Endpoint("shop", store=url, transport=url, worker=WorkerSettings(def_handlers="loop", wait=0.05))

    def block() -> None:
        ear.blocked.wait(60)
        handled.set()

    register(shop, block)
    async with open_transport(url, "shop") as queue, shop.running():
        await queue.send([Send(message=Message(id="1", source="web", type="Order", body=b'{"id":"1"}'), to="shop")])
        await handled.wait()
    (said,) = [each for each in ear.records if each.event == BLOCKED]
    assert said.place.startswith(f"{__file__}:")
    assert said.place.endswith(f"{test_a_handler_that_blocks_is_named.__name__}.<locals>.block")


def test_the_place_of_a_thread_is_in_the_users_code() -> None:
    """Not in Python's, and not in a library's, as long as there is any of the user's."""
    ready, end = threading.Event(), threading.Event()

    def work() -> None:
        ready.set()
        end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    found = place_of(thread.ident or 0)
    end.set()
    thread.join(60)
    assert found.text.startswith(f"{__file__}:")
    assert found.text.endswith("work")
    assert place_of(thread.ident or 0) == ("", "")
