"""How a running endpoint is: what each process reports about itself, and what follows from it. Pure: instants are arguments.

    live    some event loop turns; if none does, restart it all
    ready   every endpoint has a process that reaches its store and its transport, and whose messages are not held up

*Degraded* is not dead: something should be looked at, and messages are handled all the same.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from msgspec import Struct

from onceonly.model.minutes import NO_WORK, WorkHistory

REPORT_SECONDS = 10.0
"""Seconds between two reports of a process."""
STALE_SECONDS = 35.0
"""Seconds without a report after which a process counts as gone: three reports are missing."""
ROW_KEPT_SECONDS = 3600.0
"""Seconds without a report after which maintenance deletes the row of a process."""


class ProcessReport(Struct, frozen=True, kw_only=True):
    """One process of one endpoint. `process` is unique, also if a process id is used again.

    `counters` count since the start of this process. `troubles` is why the worker waits just now, empty if it does not. `types`
    are the types of messages that it handles: the first 32 KiB of them. `work` is what it did in the last hour and day.
    """

    process: str
    host: str
    pid: int
    version: str
    counters: Mapping[str, int] = {}
    troubles: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    work: WorkHistory = NO_WORK


class ProcessState(Struct, frozen=True, kw_only=True):
    """A process as the store knows it: its last report, and the age of that in seconds, by the store's clock."""

    report: ProcessReport
    age: float

    @property
    def is_stale(self) -> bool:
        """Whether the process has missed several reports: it was killed, it hangs, or it does not reach the store."""
        return self.age > STALE_SECONDS


class Level(StrEnum):
    """How well something is."""

    OK = "ok"
    DEGRADED = "degraded"
    FAILING = "failing"


class Trouble(Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `part` is what of an endpoint it is about; `since` is in milliseconds since 1970.

    One that `stops` keeps messages from being handled; any other degrades.
    """

    part: str
    reason: str
    since: int
    stops: bool = True


class EndpointHealth(Struct, frozen=True, kw_only=True):
    """One endpoint, as one process finds it. It `works` once a worker has reached its queue, or a relay its store."""

    endpoint: str
    works: bool = False
    troubles: tuple[Trouble, ...] = ()


class Pulse(Struct, frozen=True, kw_only=True):
    """What the parent knows of one of its processes.

    `silent` is for how many seconds its event loop did not turn, `still` for how many it held messages without progress.
    """

    process: int
    pid: int
    runs: bool
    starts: bool = False
    silent: float = 0.0
    still: float = 0.0


class HangLimits(NamedTuple):
    """For how many seconds a process may be `silent`, and `still`, before it is taken to hang."""

    silent: float
    still: float = inf


class ProcessHealth(Struct, frozen=True, kw_only=True):
    """One process: its pulse, and how it finds its endpoints."""

    pulse: Pulse
    endpoints: tuple[EndpointHealth, ...] = ()


class HealthAssessment(Struct, frozen=True, kw_only=True):
    """How all of it is, why, and what that was judged by."""

    status: Level
    reasons: tuple[str, ...]
    processes: tuple[ProcessHealth, ...] = ()


def liveness(pulses: Sequence[Pulse], patience: HangLimits) -> HealthAssessment:
    """Judge by the processes' event loops and by their progress: one that did neither turn nor get on within `patience` hangs.

    One process that hangs is the parent's to replace; the command is not alive when no process is left.
    """
    still = [pulse for pulse in pulses if not _is_alive(pulse, patience)]
    reasons = tuple(_hang_reason(pulse, patience) for pulse in still)
    status = Level.OK if not still else Level.DEGRADED if len(still) < len(pulses) else Level.FAILING
    return HealthAssessment(status=status, reasons=reasons, processes=tuple(ProcessHealth(pulse=pulse) for pulse in pulses))


def readiness(
    processes: Sequence[ProcessHealth], endpoints: Iterable[str], *, patience: HangLimits, now: int
) -> HealthAssessment:
    """Judge by what the processes that turn know of these endpoints. `now` is in milliseconds since 1970."""
    levels, reasons = (
        [Level.OK],
        [_hang_reason(each.pulse, patience) for each in processes if not _is_alive(each.pulse, patience)],
    )
    for name in endpoints:
        found = {each.pulse.process: _health_at(each, name) for each in processes if _is_alive(each.pulse, patience)}
        levels.append(_level(list(found.values()), len(processes)))
        reasons += _reasons(name, found, now)
    worst = max(levels, key=list(Level).index)
    if worst is Level.OK and reasons:
        worst = Level.DEGRADED
    return HealthAssessment(status=worst, reasons=tuple(dict.fromkeys(reasons)), processes=tuple(processes))


def _level(found: Sequence[EndpointHealth], processes: int) -> Level:
    well = [each for each in found if each.works and not any(trouble.stops for trouble in each.troubles)]
    if not well:
        return Level.FAILING
    return Level.OK if len(well) == processes and not any(each.troubles for each in well) else Level.DEGRADED


def _reasons(name: str, found: dict[int, EndpointHealth], now: int) -> Iterator[str]:
    for process, health in found.items():
        for trouble in health.troubles:
            seconds = max(0, now - trouble.since) // 1000
            yield f"endpoint {name}, process {process}: {trouble.part} failing for {seconds} s: {trouble.reason}"
        if not health.works and not health.troubles:
            yield f"endpoint {name}, process {process}: is starting and has not connected to its servers yet"


def _health_at(process: ProcessHealth, name: str) -> EndpointHealth:
    return next((each for each in process.endpoints if each.endpoint == name), EndpointHealth(endpoint=name))


def _is_alive(pulse: Pulse, patience: HangLimits) -> bool:
    return pulse.runs and (pulse.starts or (pulse.silent <= patience.silent and pulse.still <= patience.still))


def _hang_reason(pulse: Pulse, patience: HangLimits) -> str:
    if not pulse.runs:
        return f"process {pulse.process} has ended and will be replaced"
    if pulse.silent <= patience.silent:
        return f"process {pulse.process} (pid {pulse.pid}) holds messages and has made no progress for {pulse.still:.0f} s"
    return f"process {pulse.process} (pid {pulse.pid}) hangs: its event loop has been blocked for {pulse.silent:.0f} s"
