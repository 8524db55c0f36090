"""A handler's run: a task and a context of its own, and a time that it cannot outstay."""

import asyncio
import gc
import inspect
from contextvars import ContextVar
from typing import Any

import pytest

from onceonly.endpoint.limits import CancelledFromInside, LimitedRun, TimeLimits
from onceonly.model.errors import HandlerStuck

LONG, SHORT = 3600.0, 0.01
WHOSE: ContextVar[str] = ContextVar("WHOSE", default="nobody's")


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def limited(limits: TimeLimits, seconds: float) -> LimitedRun:
    """Wait for ever under a limit; gives the run once it has been cut off."""
    run = LimitedRun(limits, seconds)
    with pytest.raises(TimeoutError):
        await run(forever())
    return run


async def value(of: Any = None) -> Any:
    """Return at once."""
    return of


def me() -> "asyncio.Task[Any]":
    """Return the task that runs."""
    task = asyncio.current_task()
    assert task is not None
    return task


async def test_what_takes_too_long_is_cut_off() -> None:
    """The handler is cancelled where it waits; the caller's task is not."""
    run = await limited(TimeLimits(), SHORT)
    assert run.expired
    assert me().cancelling() == 0


@pytest.mark.parametrize("waits", [False, True])
async def test_what_ends_in_time_is_left_alone(waits: bool) -> None:  # noqa: FBT001
    """It returns what it returns, and nothing cuts it off later, although the timer that it set still rings."""
    limits = TimeLimits()
    run = LimitedRun(limits, SHORT)

    async def work() -> int:
        if waits:
            await asyncio.sleep(0)
        return 7

    assert await run(work()) == 7
    await limited(limits, 2 * SHORT)
    assert not run.expired


async def test_a_short_limit_is_not_kept_waiting_by_a_long_one() -> None:
    """The timer was set for the long one; it is set anew for the short one."""
    limits, end = TimeLimits(), asyncio.Event()
    run = LimitedRun(limits, LONG)
    long = asyncio.create_task(run(end.wait()))
    await asyncio.sleep(0)
    assert (await limited(limits, SHORT)).expired
    end.set()
    assert await long
    assert not run.expired


async def test_a_limit_that_outlives_the_timer_of_another_is_kept() -> None:
    """The timer rings for a run that is over; whoever is still running gets it next."""
    limits = TimeLimits()
    await LimitedRun(limits, SHORT)(asyncio.sleep(0))
    first, second = await asyncio.gather(limited(limits, 2 * SHORT), limited(limits, 3 * SHORT))
    assert first.expired
    assert second.expired


async def test_a_cancelled_caller_cancels_the_handler_and_waits_for_its_end() -> None:
    """Cancellation equals a crash, and the handler cleans up before its unit is gone."""
    ended: list[str] = []

    async def work() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0)
            ended.append("handler")

    caller = asyncio.create_task(LimitedRun(TimeLimits(), LONG)(work()))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended == ["handler"]


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("waits", [False, True])
async def test_an_error_in_time_stays_that_error(error: BaseException, waits: bool) -> None:  # noqa: FBT001
    """Whatever it is, it reaches the caller, and never the event loop."""

    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise error

    with pytest.raises(type(error)) as raised:
        await LimitedRun(TimeLimits(), LONG)(work())
    assert raised.value is error


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
async def test_a_handler_that_cancels_itself_ends_itself_alone(before: bool, after: bool) -> None:  # noqa: FBT001
    """Whether it waits before, or afterwards, or never: the caller learns of it, and the next handler runs."""
    limits = TimeLimits()

    async def work() -> None:
        if before:
            await asyncio.sleep(0)
        me().cancel()
        if after:
            await forever()

    with pytest.raises(CancelledFromInside):
        await LimitedRun(limits, LONG)(work())
    assert me().cancelling() == 0
    assert await LimitedRun(limits, LONG)(value(7)) == 7


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancellation_that_a_handler_takes_back_reaches_no_other(late: bool) -> None:  # noqa: FBT001
    """Not the next handler, which would run in the same task. Nor one that comes when the first has ended."""
    limits = TimeLimits()

    async def work() -> "asyncio.Task[Any]":
        task = me()
        if not late:
            task.cancel()
            task.uncancel()
        return task

    async def waits() -> int:
        await asyncio.sleep(0)
        return 7

    task = await LimitedRun(limits, LONG)(work())
    if late:
        task.cancel()
    assert await LimitedRun(limits, LONG)(waits()) == 7
    assert await LimitedRun(limits, LONG)(value(7)) == 7


async def test_what_a_handler_waits_for_first_is_cancelled_with_it() -> None:
    """As in any task, though this wait began before the task did."""
    inner: list[asyncio.Task[None]] = []

    async def work() -> None:
        inner.append(asyncio.create_task(forever()))
        me().cancel()
        await inner[0]

    with pytest.raises(CancelledFromInside):
        await LimitedRun(TimeLimits(), LONG)(work())
    assert inner[0].cancelled()


async def test_others_may_wait_for_what_a_handler_waits_for_first() -> None:
    """A cache that several handlers fill with one call, for example: at once, and in the same turn of the loop."""
    shared = asyncio.get_running_loop().create_future()
    limits = TimeLimits()

    async def work() -> str:
        return str(await shared)

    waiting = [asyncio.create_task(LimitedRun(limits, LONG)(work())) for _ in range(3)]
    other = asyncio.create_task(work())
    await asyncio.sleep(0)
    shared.set_result("filled")
    assert await asyncio.gather(*waiting, other) == ["filled"] * 4


async def test_a_task_factory_does_not_get_between_a_handler_and_its_task() -> None:
    """One that wraps coroutines, as some monitoring does."""

    async def wrapped(work: Any) -> Any:
        return await work

    def factory(loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> asyncio.Task[Any]:
        return asyncio.Task(wrapped(work), loop=loop, **more)

    asyncio.get_running_loop().set_task_factory(factory)
    try:
        assert await LimitedRun(TimeLimits(), LONG)(value(7)) == 7
        await LimitedRun(TimeLimits(), LONG)(asyncio.sleep(0))  # type: ignore[arg-type] # a coroutine all the same
    finally:
        asyncio.get_running_loop().set_task_factory(None)


async def test_equal_values_of_two_contexts_are_not_taken_for_one() -> None:
    """What one handler appends to a list of its caller's, another one does not see."""
    mine, limits = ContextVar[list[str]]("mine"), TimeLimits()

    async def work(text: str) -> list[str]:
        mine.get().append(text)
        return mine.get()

    async def call(text: str) -> Any:
        mine.set([])
        return await LimitedRun(limits, LONG)(work(text))

    assert await asyncio.gather(call("one"), call("other")) == [["one"], ["other"]]


async def test_tools_see_where_a_handler_waits() -> None:
    """The stack of its task is the handler's own, not this library's."""

    async def work() -> None:
        await forever()

    running = asyncio.create_task(LimitedRun(TimeLimits(), LONG)(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task = next(task for task in asyncio.all_tasks() if task.get_name() == "onceonly handler")
    assert [frame.f_code.co_name for frame in task.get_stack()] == ["work"]
    assert inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_SUSPENDED  # type: ignore[arg-type] # it shows the handler's
    running.cancel()
    await asyncio.wait({running})


async def test_waiting_for_what_was_cancelled_is_told_from_a_cancelled_caller() -> None:
    """A task of the handler's own, for example."""

    async def work() -> None:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(CancelledFromInside):
        await LimitedRun(TimeLimits(), LONG)(work())


async def test_a_time_out_of_its_own_is_its_own() -> None:
    """`asyncio.timeout` and task groups cancel the handler's task, and take that back."""

    async def work() -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        try:
            async with asyncio.timeout(SHORT):
                await forever()
        except TimeoutError:
            return "timed out"
        return ""

    assert await LimitedRun(TimeLimits(), LONG)(work()) == "timed out"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_caught_failure_of_a_task_group_is_not_a_cancellation(waits: bool) -> None:  # noqa: FBT001 - pytest's way
    """Up to Python 3.12 `cancelling()` stays at 1, if the group was waiting for the end of its tasks."""

    async def fail() -> None:
        raise LookupError

    async def work() -> str:
        for _ in range(2):
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    if waits:
                        await forever()
            except* LookupError:
                pass
        return "caught"

    assert await LimitedRun(TimeLimits(), LONG)(work()) == "caught"


async def test_a_handler_that_swallows_a_cancellation_by_something_else_has_failed() -> None:
    """It may have been cut off, also if a task group of its failed before."""

    async def cancel(task: "asyncio.Task[Any]") -> None:
        task.cancel()

    async def work() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(cancel(group._parent_task))  # type: ignore[attr-defined]
                await forever()
        except asyncio.CancelledError:
            return "swallowed"
        return ""

    with pytest.raises(CancelledFromInside):
        await LimitedRun(TimeLimits(), LONG)(work())


async def test_a_handler_that_swallows_its_time_out_has_failed_all_the_same() -> None:
    """It took longer, whatever it returns then."""

    async def work() -> int:
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return 7

    run = LimitedRun(TimeLimits(), SHORT)
    with pytest.raises(TimeoutError):
        await run(work())
    assert run.expired


async def test_a_handler_that_does_not_end_is_given_up() -> None:
    """After the grace time nobody waits for it any longer."""
    end = asyncio.Event()

    async def work() -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(HandlerStuck):
        await LimitedRun(TimeLimits(grace=SHORT), SHORT)(work())
    end.set()


async def test_handlers_have_a_context_of_their_own() -> None:
    """They see what their caller set, and what they set is seen by no other."""
    limits = TimeLimits()

    async def work(mine: str, *, waits: bool) -> list[str]:
        seen = [WHOSE.get()]
        WHOSE.set(mine)
        if waits:
            await asyncio.sleep(0)
        return [*seen, WHOSE.get(), (await asyncio.create_task(value(WHOSE.get()))) if waits else mine]

    for waits in (False, True, False):
        for mine in ("first", "second"):
            assert await LimitedRun(limits, LONG)(work(mine, waits=waits)) == ["nobody's", mine, mine]
    WHOSE.set("the caller's")
    assert (await LimitedRun(limits, LONG)(work("third", waits=False)))[0] == "the caller's"


async def test_handlers_share_a_task_while_only_values_of_their_context_change() -> None:
    """Such as the span of the message. Each sees its caller's value, what it starts too, and no later one changes it."""
    limits, seen = TimeLimits(), []

    async def work() -> "asyncio.Task[Any]":
        seen.append((WHOSE.get(), asyncio.create_task(value_of(WHOSE))))
        return me()

    async def value_of(variable: ContextVar[str]) -> str:
        await asyncio.sleep(0)
        return variable.get()

    tasks = []
    for whose in ("first", "second", "third"):
        WHOSE.set(whose)
        tasks.append(await LimitedRun(limits, LONG)(work()))
    assert len(set(tasks)) == 1
    assert [(now, await later) for now, later in seen] == [(each, each) for each in ("first", "second", "third")]


async def test_a_variable_that_the_caller_no_longer_has_is_not_seen() -> None:
    """It cannot be taken out of a context, so the next handler gets a new one."""
    limits, more = TimeLimits(), ContextVar("more", default="none")

    async def work() -> str:
        return more.get()

    token = more.set("some")
    assert await LimitedRun(limits, LONG)(work()) == "some"
    more.reset(token)
    assert await LimitedRun(limits, LONG)(work()) == "none"


async def test_no_handler_runs_in_the_task_of_its_caller() -> None:
    """Nor in that of another handler that is still running."""

    async def work(*, waits: bool) -> "asyncio.Task[Any]":
        first = me()
        if waits:
            await asyncio.sleep(0)
        assert me() is first
        return first

    limits, caller = TimeLimits(), me()
    for waits in (False, True):
        assert await LimitedRun(limits, LONG)(work(waits=waits)) is not caller
        assert me() is caller
    one, other = await asyncio.gather(*(LimitedRun(limits, LONG)(work(waits=True)) for _ in range(2)))
    assert one is not other


def test_each_event_loop_has_its_own_timer() -> None:
    """A timer that was set in a loop that is closed cuts off nobody in the next one, so a new one is set."""
    limits = TimeLimits()
    asyncio.run(LimitedRun(limits, SHORT)(asyncio.sleep(0)))  # type: ignore[arg-type] # a coroutine all the same
    assert asyncio.run(limited(limits, SHORT)).expired


@pytest.mark.slow
async def test_a_run_that_ended_is_forgotten() -> None:
    """The shared timer keeps nothing of those that are done, and no task is left."""
    limits = TimeLimits()
    await asyncio.sleep(0)
    gc.collect()
    before = len([each for each in gc.get_objects() if isinstance(each, LimitedRun)]), asyncio.all_tasks()
    for _ in range(10):
        await LimitedRun(limits, LONG)(value())
        await LimitedRun(limits, LONG)(asyncio.sleep(0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert (len([each for each in gc.get_objects() if isinstance(each, LimitedRun)]), asyncio.all_tasks()) == before
