"""The state of an endpoint in one word, with the reasons and what to do. Pure: instants are arguments."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct

from onceonly.dashboard.probes import Outage, Probe
from onceonly.dashboard.watching import COUNTED, MOST, WatchedEndpoint
from onceonly.model.durations import in_words
from onceonly.model.wording import counted

PENDING_SECONDS = 60
"""The age from which a pending record is a trouble: the relay of a running process sends it within `relay_after`."""


class Level(StrEnum):
    """How an endpoint is. UNKNOWN: nothing was read yet."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILING = "failing"
    UNKNOWN = "unknown"


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that needs attention. `since` is in milliseconds since 1970, 0 if unknown. `link` is a page, or empty."""

    part: str
    level: Level
    reason: str
    advice: str
    since: int = 0
    link: str = ""


def level_of(watched: WatchedEndpoint, findings: tuple[Finding, ...]) -> Level:
    """Return the worst level of the findings; UNKNOWN while a first read is missing."""
    levels = {finding.level for finding in findings}
    if Level.FAILING in levels:
        return Level.FAILING
    if any(probe.value is None and probe.outage is None for probe in watched.probes):
        return Level.UNKNOWN
    return Level.DEGRADED if levels else Level.HEALTHY


def findings_of(watched: WatchedEndpoint, now: int) -> tuple[Finding, ...]:
    """List what needs attention, the worst first."""
    parts = (
        _outages(watched),
        _handlers(watched),
        _queue(watched),
        _store(watched, now),
        _processes(watched),
        _letters(watched),
    )
    found = [finding for part in parts for finding in part]
    return tuple(sorted(found, key=lambda finding: finding.level is not Level.FAILING))


def _outages(watched: WatchedEndpoint) -> Iterator[Finding]:
    settings = watched.settings
    letters_apart = settings.places.dead_letters is not settings.places.store
    places: list[tuple[str, Probe[Any, Any], object]] = [
        ("store", watched.store, settings.places.store),
        ("transport", watched.queue, settings.places.transport),
    ]
    if letters_apart or watched.store.outage is None:
        places.append(("dead letters", watched.letters, settings.places.dead_letters))
    for part, probe, place in places:
        if (outage := probe.outage) is not None:
            yield Finding(
                part=part,
                level=Level.FAILING,
                reason=f"{place}: {outage.reason}",
                advice=_advice_for(outage),
                since=outage.since,
            )


def _advice_for(outage: Outage) -> str:
    if outage.is_setup:
        return "Correct the set-up as the text says. The page shows it within a minute."
    return "Check that the server runs and that this machine reaches it. The page recovers without a reload."


def _handlers(watched: WatchedEndpoint) -> Iterator[Finding]:
    if watched.problem:
        yield Finding(
            part="handlers",
            level=Level.FAILING,
            reason=watched.problem,
            advice="Correct the handlers: the endpoint does not start.",
        )


def _queue(watched: WatchedEndpoint) -> Iterator[Finding]:
    state = watched.queue.value
    has_queue = bool(watched.topology.events or watched.topology.commands)
    if state is not None and state.depth is None and has_queue and watched.queue.outage is None:
        yield Finding(
            part="transport",
            level=Level.DEGRADED,
            reason="its queue does not exist: no process of it ran yet",
            advice="Start it with `onceonly run`, or create the queue with `onceonly topology create`.",
        )


def _store(watched: WatchedEndpoint, now: int) -> Iterator[Finding]:
    state = watched.store.value
    if state is None or watched.store.outage is not None:
        return
    if state.oldest is not None and state.oldest > PENDING_SECONDS:
        number = state.pending or 0
        count = f"more than {counted(COUNTED, 'record')}" if number > COUNTED else counted(number, "record")
        yield Finding(
            part="pending records",
            level=Level.DEGRADED,
            reason=f"{count} with unsent messages, the oldest for {in_words(state.oldest)}",
            advice="Make sure that a worker or `onceonly relay` runs. Its log says which messages the broker refuses.",
            since=now - state.oldest * 1000,
        )
    if state.has_janitor and state.journal is None:
        yield Finding(
            part="janitor",
            level=Level.DEGRADED,
            reason="it never ran, so expired data is not deleted",
            advice="Start a worker, or run `onceonly janitor`.",
        )
    for trouble in state.journal.troubles(now) if state.journal is not None else ():
        yield Finding(
            part=trouble.part,
            level=Level.FAILING if trouble.stops else Level.DEGRADED,
            reason=trouble.reason,
            advice="Make sure that a worker or `onceonly janitor` runs, and read its log.",
            since=trouble.since,
        )
    for kind, lost in state.unsubscribed.items():
        yield Finding(
            part="events",
            level=Level.DEGRADED,
            reason=f"{counted(lost, 'event')} of type {kind} had no subscriber and are lost",
            advice="Run the endpoint that handles them, or `onceonly topology create`, before this one publishes.",
        )


def _processes(watched: WatchedEndpoint) -> Iterator[Finding]:
    state = watched.store.value
    if state is None or watched.store.outage is not None:
        return
    processes = watched.processes or ()
    running = [each for each in processes if not each.is_stale]
    queue = watched.queue.value
    waits = queue is not None and queue.depth is not None and queue.depth.waiting > 0
    for each in watched.workers if state.processes is None else ():
        if each.probe.outage is not None:
            yield Finding(
                part="processes",
                level=Level.DEGRADED,
                reason=each.probe.outage.reason,
                advice="Start `onceonly run --health` there, or correct workers=. Its processes are unknown until it answers.",
                since=each.probe.outage.since,
            )
    if watched.processes is not None and not running and (processes or waits):
        last = f", the last one {in_words(round(min(each.age for each in processes)))} ago" if processes else ""
        yield Finding(
            part="processes",
            level=Level.DEGRADED,
            reason=f"no process reports that it runs{last}",
            advice="Start the endpoint with `onceonly run`. A process that runs and is not seen does not reach the store.",
        )
    for trouble in sorted({words for each in running for words in each.report.troubles}):
        yield Finding(
            part="processes",
            level=Level.DEGRADED,
            reason=trouble,
            advice="The log of the process says since when. It goes on when the cause has ended.",
        )


def _letters(watched: WatchedEndpoint) -> Iterator[Finding]:
    if watched.letters.value and watched.letters.outage is None:
        number = watched.letters.value
        count = f"more than {counted(MOST, 'message')}" if number > MOST else counted(number, "message")
        yield Finding(
            part="dead letters",
            level=Level.DEGRADED,
            reason=f"{count} given up",
            advice="Fix the cause, then retry them.",
            link="dead",
        )
