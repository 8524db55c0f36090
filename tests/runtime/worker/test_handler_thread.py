"""The thread of a `def` handler: what it carries, what the event loop does for it, and what it is refused."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from onceonly.errors import HandlerExpired
from onceonly.runtime.worker import handler_thread
from onceonly.runtime.worker.handler_thread import HandlerThread, ThreadPool

REQUEST = contextvars.ContextVar("request", default="")


def thread(leave: float = 30.0) -> HandlerThread:
    """Prepare a thread."""
    return HandlerThread("place", seconds=2, leave=leave)


async def test_it_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    """Not in the event loop's own thread."""
    assert await thread().run(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await thread().run(lambda: 1 // 0)
    with pytest.raises(SystemExit):
        await thread().run(lambda: exit(3))  # noqa: PLR1722 - as a handler might


async def test_context_variables_are_carried_and_changes_stay_inside() -> None:
    """As in a task: the next handler begins with the context of its own caller."""

    def handler() -> str:
        found = REQUEST.get()
        REQUEST.set("of the handler")
        return found

    REQUEST.set("of the caller")
    assert await thread().run(handler) == "of the caller"
    assert await thread().run(handler) == "of the caller"
    assert REQUEST.get() == "of the caller"


async def test_the_event_loop_awaits_for_the_thread() -> None:
    """One thing after another, in the caller's task. Errors are raised in the thread."""
    place, tasks = thread(), []

    async def answer(number: int) -> int:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        return 10 // number

    def handler() -> int:
        with pytest.raises(ZeroDivisionError):
            place.wait_for(answer(0))
        return int(place.wait_for(answer(2))) + int(place.wait_for(answer(5)))

    assert await place.run(handler) == 7
    assert tasks == [asyncio.current_task()] * 3


async def test_a_cancellation_inside_of_what_it_waits_for_is_its_own() -> None:
    """The handler may go on after it."""
    place = thread()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    def handler() -> str:
        with pytest.raises(asyncio.CancelledError):
            place.wait_for(cancelled())
        return "went on"

    assert await place.run(handler) == "went on"


async def interrupted(
    function: Callable[[HandlerThread, Callable[[], None]], object], *, leave: float = 30.0
) -> tuple[HandlerThread, list[HandlerExpired]]:
    """Run a function, which is given its thread and a way to say that its time is over; gives what the others hear."""
    place, over, heard = thread(leave), asyncio.Event(), []
    loop = asyncio.get_running_loop()
    place.on_expiry(heard.append)
    running = asyncio.create_task(place.run(lambda: function(place, lambda: loop.call_soon_threadsafe(over.set) and None)))
    await over.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    return place, heard


async def test_after_its_time_nothing_is_awaited_for_it() -> None:
    """Whatever it still asks for, as often as it asks."""
    awaited, refused, goes_on = [], [], threading.Event()

    async def statement(number: int) -> None:
        awaited.append(number)

    def handler(place: HandlerThread, over: Callable[[], None]) -> None:
        place.wait_for(statement(1))
        over()
        goes_on.wait(60)
        for number in (2, 3):
            with pytest.raises(HandlerExpired) as caught:
                place.wait_for(statement(number))
            refused.append(caught.value)
        with pytest.raises(HandlerExpired):
            place.check()

    place, heard = await interrupted(handler, leave=0.0)
    assert (place.is_out, place.is_left, len(heard)) == (False, True, 1)
    goes_on.set()
    await left(place)
    assert (place.is_out, awaited, len(refused)) == (True, [1], 2)


async def left(place: HandlerThread) -> None:
    """Wait until a thread that was left behind has returned."""
    while place.is_left:  # noqa: ASYNC110 - its end is not announced
        await asyncio.sleep(0.001)


async def test_what_is_being_awaited_is_cancelled_and_the_thread_gets_out() -> None:
    """As an interrupted statement, which adapters know."""
    seen: list[str] = []

    def handler(place: HandlerThread, over: Callable[[], None]) -> None:
        async def statement() -> None:
            over()
            await asyncio.Event().wait()

        try:
            place.wait_for(statement())
        except asyncio.CancelledError:
            seen.append("cancelled")
            place.wait_for(statement())

    place, _ = await interrupted(handler)
    assert (place.is_out, seen) == (True, ["cancelled"])


async def test_a_thread_that_is_left_behind_is_logged_with_its_place(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's code; its end is logged as well."""
    caplog.set_level("INFO")
    monkeypatch.setattr(handler_thread, "_LEFT", set())  # other tests may have left some
    goes_on = threading.Event()

    def handler(_place: HandlerThread, over: Callable[[], None]) -> None:
        over()
        goes_on.wait(60)

    place, _ = await interrupted(handler, leave=0.0)
    goes_on.set()
    await left(place)
    said, ended = caplog.records
    assert vars(said)["event"] == "handler thread did not end in time, left running"
    found: Any = said
    assert (found.handler, found.seconds, found.threads) == ("place", 2, 1)
    assert f"{__file__}:" in found.place
    assert vars(ended)["event"] == "handler thread ended after its time"


async def test_the_threads_are_used_again_and_keep_no_process_running() -> None:
    """Daemon threads: Python does not wait for them."""
    pool, threads = ThreadPool(), []

    async def run() -> None:
        ran = asyncio.Event()
        loop = asyncio.get_running_loop()

        def work() -> Callable[[], object]:
            threads.append(threading.current_thread())
            return lambda: loop.call_soon_threadsafe(ran.set)

        pool.start(work)
        await ran.wait()

    for _ in range(5):
        await run()
    assert len({each.ident for each in threads}) == 1
    assert threads[0].daemon
    pool.forget()  # as in a process that was forked, which has none of these threads
    await run()
    assert len({each.ident for each in threads}) == 2


def test_a_thread_outlives_its_event_loop_without_harm() -> None:
    """It is refused, and its end is nobody's any more."""
    goes_on, refused, ended = threading.Event(), [], threading.Event()

    async def nothing() -> None:
        """Never awaited."""

    def handler(place: HandlerThread, over: Callable[[], None]) -> None:
        over()
        goes_on.wait(60)
        try:
            place.wait_for(nothing())
        except HandlerExpired as error:
            refused.append(error)
        ended.set()

    place, _ = asyncio.run(interrupted(handler, leave=0.0))
    goes_on.set()
    assert ended.wait(60)
    assert len(refused) == 1
    while place.is_left:
        time.sleep(0.001)
