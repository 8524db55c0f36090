"""The state of an endpoint in one word, with the reasons and what to do. Pure: instants are arguments."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

from msgspec import Struct

from onceonly.model.wording import counted, in_words
from onceonly_dashboard.endpoint_probes import COUNTED, MOST, EndpointProbes
from onceonly_dashboard.probes import Outage, Probe

PENDING_SECONDS = 60
"""The age from which a pending record is a trouble: the relay of a running process sends it within `relay_after`."""


class EndpointLevel(StrEnum):
    """How an endpoint is. UNKNOWN: nothing was read yet."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILING = "failing"
    UNKNOWN = "unknown"


class EndpointFinding(Struct, frozen=True, kw_only=True):
    """One thing that needs attention. `since` is in milliseconds since 1970, 0 if unknown. `link` is a page, or empty."""

    part: str
    reason: str
    advice: str
    level: EndpointLevel = EndpointLevel.DEGRADED
    since: int = 0
    link: str = ""


def level_of(probes: EndpointProbes, findings: tuple[EndpointFinding, ...]) -> EndpointLevel:
    """Return the worst level of the findings; UNKNOWN while a first read is missing."""
    levels = {finding.level for finding in findings}
    if EndpointLevel.FAILING in levels:
        return EndpointLevel.FAILING
    if any(probe.value is None and probe.outage is None for probe in probes.all_probes):
        return EndpointLevel.UNKNOWN
    return EndpointLevel.DEGRADED if levels else EndpointLevel.HEALTHY


def findings_of(probes: EndpointProbes, now: int) -> tuple[EndpointFinding, ...]:
    """List what needs attention, the worst first."""
    parts = (
        _outages(probes),
        _handlers(probes),
        _queue(probes),
        _store(probes, now),
        _processes(probes),
        _letters(probes),
    )
    found = [finding for part in parts for finding in part]
    return tuple(sorted(found, key=lambda finding: finding.level is not EndpointLevel.FAILING))


def _outages(probes: EndpointProbes) -> Iterator[EndpointFinding]:
    settings = probes.settings
    letters_apart = settings.places.dead_letters is not settings.places.store
    places: list[tuple[str, Probe[Any, Any], object]] = [
        ("store", probes.store, settings.places.store),
        ("transport", probes.queue, settings.places.transport),
    ]
    if letters_apart or probes.store.outage is None:
        places.append(("dead letters", probes.letters, settings.places.dead_letters))
    for part, probe, place in places:
        if (outage := probe.outage) is not None:
            yield EndpointFinding(
                part=part,
                level=EndpointLevel.FAILING,
                reason=f"{place}: {outage.reason}",
                advice=_advice_for(outage),
                since=outage.since,
            )


def _advice_for(outage: Outage) -> str:
    if outage.is_setup:
        return "Correct the set-up as the text says. The page shows it within a minute."
    return "Check that the server runs and that this machine reaches it. The page recovers without a reload."


def _handlers(probes: EndpointProbes) -> Iterator[EndpointFinding]:
    if probes.problem:
        yield EndpointFinding(
            part="handlers",
            level=EndpointLevel.FAILING,
            reason=probes.problem,
            advice="Correct the handlers: the endpoint does not start.",
        )


def _queue(probes: EndpointProbes) -> Iterator[EndpointFinding]:
    state = probes.queue.value
    has_queue = bool(probes.topology.events or probes.topology.commands)
    if state is not None and state.depth is None and has_queue and probes.queue.outage is None:
        yield EndpointFinding(
            part="transport",
            reason="its queue does not exist: no process of it ran yet",
            advice="Start it with `onceonly run`, or create the queue with `onceonly topology create`.",
        )


def _store(probes: EndpointProbes, now: int) -> Iterator[EndpointFinding]:
    state = probes.store.value
    if state is None or probes.store.outage is not None:
        return
    if state.oldest is not None and state.oldest > PENDING_SECONDS:
        number = state.pending or 0
        count = f"more than {counted(COUNTED, 'record')}" if number > COUNTED else counted(number, "record")
        yield EndpointFinding(
            part="pending records",
            reason=f"{count} with unsent messages, the oldest for {in_words(state.oldest)}",
            advice="Make sure that a worker or `onceonly relay` runs. Its log says which messages the broker refuses.",
            since=now - state.oldest * 1000,
        )
    if state.has_janitor and state.journal is None:
        yield EndpointFinding(
            part="janitor",
            reason="it never ran, so expired data is not deleted",
            advice="Start a worker, or run `onceonly janitor`.",
        )
    for trouble in state.journal.troubles(now) if state.journal is not None else ():
        yield EndpointFinding(
            part=trouble.part,
            level=EndpointLevel.FAILING if trouble.stops else EndpointLevel.DEGRADED,
            reason=trouble.reason,
            advice="Make sure that a worker or `onceonly janitor` runs, and read its log.",
            since=trouble.since,
        )
    for kind, lost in state.unsubscribed.items():
        yield EndpointFinding(
            part="events",
            reason=f"{counted(lost, 'event')} of type {kind} had no subscriber and are lost",
            advice="Run the endpoint that handles them, or `onceonly topology create`, before this one publishes.",
        )


def _processes(probes: EndpointProbes) -> Iterator[EndpointFinding]:
    state = probes.store.value
    if state is None or probes.store.outage is not None:
        return
    processes = probes.processes or ()
    running = [each for each in processes if not each.is_stale]
    queue = probes.queue.value
    waits = queue is not None and queue.depth is not None and queue.depth.waiting > 0
    for each in probes.workers if state.processes is None else ():
        if each.probe.outage is not None:
            yield EndpointFinding(
                part="processes",
                reason=each.probe.outage.reason,
                advice="Start `onceonly run --health` there, or correct workers=. Its processes are unknown until it answers.",
                since=each.probe.outage.since,
            )
    if probes.processes is not None and not running and (processes or waits):
        last = f", the last one {in_words(round(min(each.age for each in processes)))} ago" if processes else ""
        yield EndpointFinding(
            part="processes",
            reason=f"no process reports that it runs{last}",
            advice="Start the endpoint with `onceonly run`. A process that runs and is not seen does not reach the store.",
        )
    for trouble in sorted({trouble for each in running for trouble in each.report.troubles}):
        yield EndpointFinding(
            part="processes",
            reason=trouble,
            advice="The log of the process says since when. It goes on when the cause has ended.",
        )


def _letters(probes: EndpointProbes) -> Iterator[EndpointFinding]:
    if probes.letters.value and probes.letters.outage is None:
        number = probes.letters.value
        count = f"more than {counted(MOST, 'message')}" if number > MOST else counted(number, "message")
        yield EndpointFinding(
            part="dead letters",
            reason=f"{count} given up",
            advice="Fix the cause, then retry them.",
            link="dead",
        )
