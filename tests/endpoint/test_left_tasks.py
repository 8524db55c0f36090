"""Tasks that a handler left running when it ended are logged with its name and theirs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from onceonly.endpoint.left_tasks import INTERVAL_SECONDS, REPORT_SECONDS, TaskWatch
from onceonly.endpoint.limits import LimitedRun, TimeLimits
from tests.endpoint.harness import effects, endpoint, incoming
from tests.log_events import event_in, events

LEFT = "handler left tasks running"
Body = Callable[[set["asyncio.Task[Any]"]], Awaitable[object]]
"""A handler, with a place for the tasks that it starts."""


async def send_mail() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def watched(body: Body, watch: TaskWatch | None = None, *, seconds: float = 60.0) -> TaskWatch:
    """Run a handler under a watch, then end what it left."""
    watch, started = watch or TaskWatch("shop.place"), set[asyncio.Task[Any]]()

    async def work() -> object:
        return await body(started)

    with suppress(ValueError, TimeoutError):
        await LimitedRun(TimeLimits(), seconds, watch)(work())
    for task in started:
        task.cancel()
    await asyncio.gather(*started, return_exceptions=True)
    return watch


def start(started: set["asyncio.Task[Any]"], what: Coroutine[Any, Any, Any] | None = None, name: str = "mail") -> None:
    """Start a task."""
    started.add(asyncio.create_task(what or send_mail(), name=name))


async def leave(started: set["asyncio.Task[Any]"]) -> None:
    """Leave a task, and wait for nothing."""
    start(started)


async def leave_after_waiting(started: set["asyncio.Task[Any]"]) -> None:
    """Wait, then leave a task."""
    await asyncio.sleep(0.001)
    start(started)


async def leave_and_fail(started: set["asyncio.Task[Any]"]) -> None:
    """Leave a task and fail, as `asyncio.gather` does."""
    start(started)
    raise ValueError("no")


async def leave_in_a_timeout(started: set["asyncio.Task[Any]"]) -> None:
    """Leave a task, and take too long."""
    start(started)
    await asyncio.sleep(60)


async def leave_through_another(started: set["asyncio.Task[Any]"]) -> None:
    """Await a task that leaves one."""
    await asyncio.create_task(leave(started))


@pytest.mark.parametrize("body", [leave, leave_after_waiting, leave_and_fail, leave_in_a_timeout, leave_through_another])
async def test_a_task_that_a_handler_left_is_logged(body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """With the handler's name, its own name, and what it runs."""
    await watched(body, seconds=0.05)
    (record,) = caplog.records
    assert event_in(record) == LEFT
    fields = vars(record)
    assert (fields["handler"], fields["count"], fields["tasks"]) == ("shop.place", 1, "mail (send_mail)")


async def nothing(_started: set["asyncio.Task[Any]"]) -> None:
    """Do nothing."""


async def with_a_group(_started: set["asyncio.Task[Any]"]) -> None:
    """Wait for tasks, as one should."""
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0.001))
        group.create_task(asyncio.sleep(0))


async def with_a_timer(_started: set["asyncio.Task[Any]"]) -> None:
    """Leave timers, whose contexts live on: those of a timeout are cancelled."""
    asyncio.get_running_loop().call_later(0.05, int)
    async with asyncio.timeout(30):
        await asyncio.sleep(0)


async def cancel_without_waiting(started: set["asyncio.Task[Any]"]) -> None:
    """Cancel a task, which ends in the next turn of the event loop."""
    start(started)
    await asyncio.sleep(0)
    next(iter(started)).cancel()


@pytest.mark.parametrize("body", [nothing, with_a_group, with_a_timer, cancel_without_waiting])
async def test_a_handler_that_leaves_no_task_is_not_logged(body: Body, caplog: pytest.LogCaptureFixture) -> None:
    """Nor are the tasks of others."""
    other = asyncio.create_task(send_mail())
    await watched(body)
    other.cancel()
    assert events(caplog.records) == []


async def test_several_tasks_are_one_entry(caplog: pytest.LogCaptureFixture) -> None:
    """It names three of them."""

    async def body(started: set["asyncio.Task[Any]"]) -> None:
        for number in range(5):
            start(started, name=f"mail-{number}")

    await watched(body)
    fields = vars(caplog.records[0])
    assert fields["count"] == 5
    assert fields["tasks"] == "mail-0 (send_mail), mail-1 (send_mail), mail-2 (send_mail)"


async def test_a_busy_handler_is_watched_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """The first run, and later ones with some time between. There is an entry once a minute."""
    watch = await watched(leave)
    assert events(caplog.records) == [LEFT]
    due = watch.due
    assert due > asyncio.get_running_loop().time()
    await watched(leave, watch)
    assert watch.due == due
    assert INTERVAL_SECONDS < REPORT_SECONDS
    watch.due = 0.0
    await watched(leave, watch)
    assert watch.due > due
    assert events(caplog.records) == [LEFT]


@pytest.mark.parametrize("is_eager", [False, True])
async def test_a_task_factory_of_the_users_stays(is_eager: bool, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001 - pytest's
    """Also one that makes eager tasks, which Python 3.12 has."""
    eager = getattr(asyncio, "eager_task_factory", None)
    if is_eager and eager is None:
        pytest.skip("eager tasks need Python 3.12")
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        return asyncio.Task(coro, loop=loop, **options)

    chosen: Any = eager if is_eager else make
    loop.set_task_factory(chosen)
    try:
        await watched(leave)
        assert loop.get_task_factory() is chosen
    finally:
        loop.set_task_factory(None)
    assert events(caplog.records) == [LEFT]


async def test_the_handlers_of_an_endpoint_are_watched(caplog: pytest.LogCaptureFixture) -> None:
    """The entry has the handler's full name."""
    shop, started = endpoint(), set[asyncio.Task[Any]]()

    @shop.handler(type="Order")
    async def place(_order: dict[str, Any]) -> None:
        start(started)

    await effects(shop, incoming())
    for task in started:
        task.cancel()
    (record,) = caplog.records
    assert event_in(record) == LEFT
    assert vars(record)["handler"].endswith("test_the_handlers_of_an_endpoint_are_watched.place")
