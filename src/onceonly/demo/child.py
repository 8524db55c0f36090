"""What runs in each of the demo's processes: both endpoints, side by side."""

import asyncio
from pathlib import Path

from onceonly.demo.endpoints import make
from onceonly.demo.place import DemoUrls
from onceonly.demo.waits import StepRecorder
from onceonly.endpoint.host import host_of
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.child import run_child
from onceonly.runtime.processes.counters import CounterRow

GRACE_SECONDS = 5.0
"""Seconds to finish what is in work after the stop, and after the demo itself was killed."""


def serve(index: int, counters_path: str, place: DemoUrls) -> None:
    """Work until told to stop, or killed."""

    async def main(stop: asyncio.Event, row: CounterRow) -> None:
        steps = StepRecorder(Path(counters_path).parent, LIVE.clock)
        async with asyncio.TaskGroup() as group:
            for endpoint in make(place):
                group.create_task(host_of(endpoint).run(stop, counters=row, observer=steps))

    run_child(index, counters_path, main, grace=GRACE_SECONDS)
