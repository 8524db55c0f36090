"""Time limits that share one timer: each is as exact as a timer of its own, and nobody else's cancellation is taken for it."""

import asyncio
import gc

import pytest

from onceonly.endpoint.limits import TimeLimit, TimeLimits

LONG, SHORT = 3600.0, 0.01


async def forever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


async def limited(limits: TimeLimits, seconds: float) -> TimeLimit:
    """Wait for ever under a limit; gives the limit once it has cut that off."""
    limit = TimeLimit(limits, seconds)
    with pytest.raises(TimeoutError), limit:
        await forever()
    return limit


async def test_what_takes_too_long_is_cut_off() -> None:
    """The task is cancelled where it waits, and the block raises TimeoutError; the task goes on and is not being cancelled."""
    limit = await limited(TimeLimits(), SHORT)
    task = asyncio.current_task()
    assert limit.expired
    assert task is not None
    assert task.cancelling() == 0


async def test_what_ends_in_time_is_left_alone() -> None:
    """A limit that was left never cuts anything off later, although the timer that it set still rings."""
    limits = TimeLimits()
    limit = TimeLimit(limits, SHORT)
    with limit:
        pass
    await limited(limits, 2 * SHORT)
    assert not limit.expired


async def test_a_short_limit_is_not_kept_waiting_by_a_long_one() -> None:
    """The timer was set for the long one; it is set anew for the short one."""
    limits = TimeLimits()
    with TimeLimit(limits, LONG) as long:
        assert (await asyncio.create_task(limited(limits, SHORT))).expired
    assert not long.expired


async def test_a_limit_that_outlives_the_timer_of_another_is_kept() -> None:
    """The timer rings for a limit that is over; whoever is still running gets it next."""
    limits = TimeLimits()
    with TimeLimit(limits, SHORT):
        pass
    first, second = await asyncio.gather(limited(limits, 2 * SHORT), limited(limits, 3 * SHORT))
    assert first.expired
    assert second.expired


async def test_a_cancellation_from_elsewhere_is_no_time_out() -> None:
    """Who cancels the task means the whole of it, also when the time was up as well."""

    async def work() -> None:
        with TimeLimit(TimeLimits(), LONG) as limit:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            limit.expire()
            await forever()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(work())


async def test_an_error_in_time_stays_that_error() -> None:
    """The limit adds nothing to what the work itself raises."""
    with pytest.raises(ZeroDivisionError), TimeLimit(TimeLimits(), LONG):
        raise ZeroDivisionError


def test_each_event_loop_has_its_own_timer() -> None:
    """A timer that was set in a loop that is closed cuts off nobody in the next one, so a new one is set."""
    limits = TimeLimits()

    async def leave() -> None:
        with TimeLimit(limits, SHORT):
            pass

    asyncio.run(leave())
    assert asyncio.run(limited(limits, SHORT)).expired


async def test_a_limit_that_was_left_is_forgotten() -> None:
    """The shared timer keeps nothing of those who are done."""
    limits = TimeLimits()
    before = len([each for each in gc.get_objects() if isinstance(each, TimeLimit)])
    for _ in range(10):
        with TimeLimit(limits, LONG):
            pass
    assert len([each for each in gc.get_objects() if isinstance(each, TimeLimit)]) == before
