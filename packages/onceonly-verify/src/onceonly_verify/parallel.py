"""Random schedules in several processes: each takes a few hundred at a time, and the answer is that of one process."""

import gc
import signal
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context

from msgspec.structs import replace

from onceonly_verify.schedules import Tick, WalkResult, walk_schedules

CHUNK = 200


def walk_in_processes(
    wanted: int, *, seed: int = 0, first: int = 0, processes: int = 1, tick: Tick | None = None
) -> WalkResult:
    """Walk schedules `first` to `wanted` - 1 of a seed over the shipping code.

    Ends early when a schedule ends badly, and at a KeyboardInterrupt. What it returns is a gapless row of schedules.
    """
    if processes < 2 or wanted - first <= CHUNK:  # noqa: PLR2004 - one process needs no other
        return walk_schedules(wanted, seed=seed, first=first, tick=tick)
    began = time.perf_counter()
    so_far = WalkResult(seed=seed, first=first, schedules=0, steps=0, seconds=0.0, wanted=wanted - first)
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare)
    try:
        parts = [
            pool.submit(walk_schedules, min(begin + CHUNK, wanted), seed=seed, first=begin)
            for begin in range(first, wanted, CHUNK)
        ]
        for part in parts:
            so_far = _together(so_far, part, time.perf_counter() - began)
            if so_far.violation:
                break
            if tick:
                tick(so_far)
    except KeyboardInterrupt:
        pass  # what was done so far is an answer
    finally:
        pool.shutdown(cancel_futures=True)
    return so_far


def _together(so_far: WalkResult, part: "Future[WalkResult]", seconds: float) -> WalkResult:
    found = part.result()
    return replace(
        found,
        first=so_far.first,
        schedules=so_far.schedules + found.schedules,
        steps=so_far.steps + found.steps,
        seconds=seconds,
        wanted=so_far.wanted,
    )


def _prepare() -> None:
    """Leave interruptions to the parent, and collect garbage rarely: a schedule makes few cycles (10 % less CPU)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
