"""Measures the pauses of this process's garbage collector."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Pauses:
    """Pauses in seconds: all together, and the longest."""

    total: float = 0.0
    longest: float = 0.0


@contextmanager
def measured_pauses() -> Iterator[Pauses]:
    """Measure until the end of the context."""
    pauses, began = Pauses(), 0.0

    def collects(phase: str, _info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.perf_counter()
            return
        pause = time.perf_counter() - began
        pauses.total += pause
        pauses.longest = max(pauses.longest, pause)

    gc.callbacks.append(collects)
    try:
        yield pauses
    finally:
        gc.callbacks.remove(collects)
