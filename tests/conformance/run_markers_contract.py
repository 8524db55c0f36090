"""What every record of runs promises, for memory, SQL and documents alike."""

import asyncio
from collections.abc import Callable

from onceonly.model.identity import Identity
from onceonly.ports.run_markers import BEGUN, MOST_WAIT_SECONDS, NO_DEATHS, RunMarkers

MESSAGE, OTHER, THIRD = (Identity("upstream", name) for name in "abc")
LONG = 3600.0
"""Seconds in which no run of a test counts as dead."""


async def check(make: Callable[[float], RunMarkers]) -> None:
    """Check all of it. `make` gives a process's own record, on one place, in which a run lasts so many seconds."""
    await _a_run_that_ended_leaves_nothing(make)
    await _a_run_that_did_not_end_is_found_once(make)
    await _a_run_that_may_be_in_progress_is_waited_for(make)
    await _a_death_that_was_counted_is_not_found_again(make)
    await _the_end_of_a_run_does_not_end_another(make)
    await _a_death_that_was_counted_elsewhere_is_forgotten(make)


async def _a_run_that_ended_leaves_nothing(make: Callable[[float], RunMarkers]) -> None:
    run_markers = make(0)
    for _ in range(2):
        assert await run_markers.begin(MESSAGE, 0) == BEGUN
        await run_markers.finish(MESSAGE)
    await run_markers.finish(MESSAGE)
    assert await run_markers.find_dead([MESSAGE]) == NO_DEATHS


async def _a_run_that_did_not_end_is_found_once(make: Callable[[float], RunMarkers]) -> None:
    assert await make(0).begin(MESSAGE, 2) == BEGUN
    await asyncio.sleep(0.005)
    assert await make(0).begin(OTHER, 0) == BEGUN
    run_markers = make(LONG)
    assert (await run_markers.begin(MESSAGE, 2)).died == 2
    assert await run_markers.begin(MESSAGE, 2) == BEGUN
    await run_markers.finish(MESSAGE)


async def _a_run_that_may_be_in_progress_is_waited_for(make: Callable[[float], RunMarkers]) -> None:
    first, second = make(LONG), make(LONG)
    assert await first.begin(MESSAGE, 1) == BEGUN
    for attempts in (0, 1):
        started = await second.begin(MESSAGE, attempts)
        assert started.died is None
        assert 0 < started.wait <= MOST_WAIT_SECONDS  # not to the end of what it may last: most runs end soon
    await first.finish(MESSAGE)
    assert await second.begin(MESSAGE, 1) == BEGUN
    await second.finish(MESSAGE)


async def _a_death_that_was_counted_is_not_found_again(make: Callable[[float], RunMarkers]) -> None:
    """The copy that carries the raised count begins, whatever is recorded of the run that was counted."""
    assert await make(LONG).begin(MESSAGE, 1) == BEGUN
    run_markers = make(LONG)
    assert await run_markers.begin(MESSAGE, 2) == BEGUN
    await run_markers.finish(MESSAGE)


async def _the_end_of_a_run_does_not_end_another(make: Callable[[float], RunMarkers]) -> None:
    late, other = make(LONG), make(0)
    assert await late.begin(MESSAGE, 1) == BEGUN
    assert await other.begin(MESSAGE, 2) == BEGUN
    await late.finish(MESSAGE)
    await asyncio.sleep(0.005)
    run_markers = make(0)
    assert (await run_markers.begin(MESSAGE, 2)).died == 2


async def _a_death_that_was_counted_elsewhere_is_forgotten(make: Callable[[float], RunMarkers]) -> None:
    """So a message that starts again from zero begins. A run that began with a higher count stays."""
    assert await make(LONG).begin(THIRD, 3) == BEGUN
    run_markers = make(LONG)
    await run_markers.forget(THIRD, 2)
    assert (await run_markers.begin(THIRD, 0)).wait > 0
    await run_markers.forget(THIRD, 3)
    await run_markers.forget(THIRD, 3)
    assert await run_markers.begin(THIRD, 0) == BEGUN
    await run_markers.finish(THIRD)
