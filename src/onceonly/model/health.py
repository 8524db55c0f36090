"""How a running endpoint is: what each process knows of itself, and what follows from it. Pure: instants are arguments.

    live    some event loop turns; if none does, restart it all
    ready   every endpoint has a process that reaches its store and its transport, and whose messages are not held up

*Degraded* is not dead: something should be looked at, and messages are handled all the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

from msgspec import Struct


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
    still = [pulse for pulse in pulses if not _turns(pulse, patience)]
    reasons = tuple(_words(pulse, patience) for pulse in still)
    status = Level.OK if not still else Level.DEGRADED if len(still) < len(pulses) else Level.FAILING
    return HealthAssessment(status=status, reasons=reasons, processes=tuple(ProcessHealth(pulse=pulse) for pulse in pulses))


def readiness(
    processes: Sequence[ProcessHealth], endpoints: Iterable[str], *, patience: HangLimits, now: int
) -> HealthAssessment:
    """Judge by what the processes that turn know of these endpoints. `now` is in milliseconds since 1970."""
    levels, reasons = [Level.OK], [_words(each.pulse, patience) for each in processes if not _turns(each.pulse, patience)]
    for name in endpoints:
        found = {each.pulse.process: _of(each, name) for each in processes if _turns(each.pulse, patience)}
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


def _of(process: ProcessHealth, name: str) -> EndpointHealth:
    return next((each for each in process.endpoints if each.endpoint == name), EndpointHealth(endpoint=name))


def _turns(pulse: Pulse, patience: HangLimits) -> bool:
    return pulse.runs and (pulse.starts or (pulse.silent <= patience.silent and pulse.still <= patience.still))


def _words(pulse: Pulse, patience: HangLimits) -> str:
    if not pulse.runs:
        return f"process {pulse.process} has ended and will be replaced"
    if pulse.silent <= patience.silent:
        return f"process {pulse.process} (pid {pulse.pid}) holds messages and has made no progress for {pulse.still:.0f} s"
    return f"process {pulse.process} (pid {pulse.pid}) hangs: its event loop has been blocked for {pulse.silent:.0f} s"
