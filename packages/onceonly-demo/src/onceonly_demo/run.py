"""One run of the demo: workers are killed while they hold messages, until enough of them were and everything is done."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from onceonly.model.errors import RetryableError
from onceonly.ports.transport import Depth
from onceonly.runtime.environment import temporary_directory
from onceonly.runtime.processes.counters import Column, SharedCounters
from onceonly.runtime.processes.processes import Supervisor
from onceonly_demo.audit import AuditFindings, RunRemains, audit
from onceonly_demo.endpoints import GRACE_SECONDS, run_endpoints
from onceonly_demo.flights import LEDGER, Flight, sends, with_receipts
from onceonly_demo.locations import Locations, choose_locations
from onceonly_demo.options import DemoOptions
from onceonly_demo.scenario import Scenario, open_scenario
from onceonly_demo.view import ViewState
from onceonly_demo.waits import LongestWait, longest_wait, read_steps

POLL_SECONDS = 0.02  # between two checks of what the processes hold
CHECKS = 8  # of the processes, for each count of the queues, which costs the database something
QUIET_SECONDS = 100.0  # without anything happening
SETTLE_SECONDS = 10.0  # for a broker to notice that processes have ended
KILLING_SHARE = 0.9  # the kills are spread over this share of the work


class SettlingView(Protocol):
    """The queues of a run, until they are empty."""

    async def drain_sink(self) -> None:
        """Receive and store the events on the wire."""

    async def depths(self) -> dict[str, Depth]:
        """Count what is left in each queue."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a run, and what was left for the table of totals."""

    messages: int
    deliveries: int
    duplicates: int
    kills: int
    findings: AuditFindings
    seconds: float
    longest_wait: LongestWait
    remains: RunRemains

    def numbers(self) -> dict[str, int | float | str]:
        """Return the numbers as `--json` prints them, and the cause of the longest wait."""
        own = {name: getattr(self, name) for name in ("messages", "deliveries", "duplicates", "kills")}
        kept = {name: getattr(self.remains, name) for name in ("marks", "swept_tokens", "swept_attempts")}
        found, left = msgspec.structs.asdict(self.findings), msgspec.structs.asdict(self.remains.left)
        longest = {"longest_wait": round(self.longest_wait.seconds, 2), "longest_wait_cause": self.longest_wait.cause}
        blobs, seconds = len(self.remains.blobs), round(self.seconds, 1)
        return {**own, **found, **left, **kept, "blobs": blobs, "seconds": seconds, **longest}


async def run(flights: list[Flight], options: DemoOptions, show: Callable[[ViewState], None]) -> Result:
    """Send the flights, let processes count them while they are killed, and audit what is left."""
    if options.blobs:
        flights = with_receipts(flights)
    messages = sends(flights, options.seed)
    with (
        temporary_directory("onceonly-demo-", "the demo") as folder,
        SharedCounters.create(Path(folder) / "board", options.processes) as counters,
    ):
        locations = choose_locations(options, Path(folder))
        async with open_scenario(locations) as scenario:
            await scenario.fill(messages)
            started = time.monotonic()
            async with _supervised(locations, options, counters) as supervisor:
                killer = Killer(supervisor, counters, options, len(messages))
                await _until_done(scenario, killer, counters, show)
            seconds = time.monotonic() - started
            await until_quiet(scenario)
            remains = await scenario.remains()
            waited = longest_wait(read_steps(Path(folder)))
        return Result(
            messages=len(flights),
            deliveries=counters.total(Column.RECEIVED),
            duplicates=counters.total(Column.KNOWN),
            kills=killer.kills,
            findings=audit(flights, remains),
            seconds=seconds,
            longest_wait=waited,
            remains=remains,
        )


class Killer:
    """Kills processes, spread evenly over the work, each at a moment when it holds unacknowledged messages."""

    def __init__(self, supervisor: Supervisor, counters: SharedCounters, options: DemoOptions, work: int) -> None:
        """`work` is how many deliveries `ledger` gets."""
        self._supervisor = supervisor
        self._counters = counters
        self._wanted = options.kills
        self._work = work
        self._rng = random.Random(options.seed)  # noqa: S311 - which process dies is no secret
        self.kills = 0

    def kill_if_due(self, left: int) -> None:
        """Kill a process if enough work is done for the next kill. `left` is the number of messages that wait for `ledger`."""
        done = 1 - left / self._work
        if self.kills < self._wanted and done >= self.kills * KILLING_SHARE / self._wanted:
            running = list(self._supervisor.pids().items())
            self._rng.shuffle(running)
            self.kills += any(self._kill(index, pid) for index, pid in running)

    def states(self) -> list[str]:
        """Return a line for each process: whether it runs, and how many messages it holds."""
        pids = self._supervisor.pids()
        return [
            f"[{index}] {self._counters.row(index).get(Column.HELD)} held" if index in pids else f"[{index}] dead"
            for index in range(self._counters.rows)
        ]

    def _kill(self, index: int, pid: int) -> bool:
        """Stop the process first, so that what it holds cannot change between the check and the kill.

        One that holds nothing is not stopped: if this process were killed just then, nobody would continue that one.
        """
        if self._counters.row(index).get(Column.HELD) <= 0:
            return False
        os.kill(pid, signal.SIGSTOP)
        if self._counters.row(index).get(Column.HELD) > 0:
            return self._supervisor.kill(index)
        os.kill(pid, signal.SIGCONT)
        return False


async def _until_done(scenario: Scenario, killer: Killer, counters: SharedCounters, show: Callable[[ViewState], None]) -> None:
    """Return when every queue is empty, or nothing has happened for long. Then the audit reports what is missing."""
    seen, end = (0, 0), time.monotonic() + QUIET_SECONDS
    while time.monotonic() < end:
        try:
            await scenario.drain_sink()
            left = {name: _all(depth) for name, depth in (await scenario.depths()).items()}
        except RetryableError:  # a server is away; the workers wait for it as well
            await asyncio.sleep(POLL_SECONDS)
            continue
        show(
            ViewState(
                left=left,
                sunk=len({message.id for message in scenario.sunk}),
                kills=killer.kills,
                deliveries=counters.total(Column.RECEIVED),
                duplicates=counters.total(Column.KNOWN),
                processes=killer.states(),
            )
        )
        if not any(left.values()):
            return
        if (sum(left.values()), len(scenario.sunk)) != seen:
            seen, end = (sum(left.values()), len(scenario.sunk)), time.monotonic() + QUIET_SECONDS
        for _ in range(CHECKS):
            killer.kill_if_due(left[LEDGER])
            await asyncio.sleep(POLL_SECONDS)


async def until_quiet(scenario: SettlingView, patience: float = SETTLE_SECONDS) -> None:
    """Wait up to `patience` seconds for the broker to redeliver what stopped processes held."""
    end = time.monotonic() + patience
    while True:
        with suppress(RetryableError):
            await scenario.drain_sink()
            if not any(_all(depth) for depth in (await scenario.depths()).values()):
                return
        if time.monotonic() >= end:
            return
        await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def _supervised(locations: Locations, options: DemoOptions, counters: SharedCounters) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(
        run_endpoints,
        (locations,),
        processes=options.processes,
        counters=counters,
        watchdog=None,
        grace=GRACE_SECONDS,
        on_event=lambda _: None,
    )
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield supervisor
    finally:  # ends the processes, however the run ended
        stop.set()
        await running


def _all(depth: Depth) -> int:
    return depth.waiting + depth.held + depth.delayed
