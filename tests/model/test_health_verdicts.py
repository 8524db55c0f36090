"""How it is: what is degraded is not dead, and what is dead is told with its reason."""

from typing import Any

from onceonly.model.health import (
    EndpointHealth,
    HangLimits,
    HealthAssessment,
    Level,
    ProcessHealth,
    Pulse,
    Trouble,
    liveness,
    readiness,
)

NOW = 60_000
PATIENCE = HangLimits(silent=10.0, still=20.0)
FINE = EndpointHealth(endpoint="shop", works=True)


def pulse(process: int = 0, **changes: Any) -> Pulse:
    """Return the pulse of a process that turns."""
    return Pulse(**{"process": process, "pid": 100 + process, "runs": True} | changes)


def trouble(part: str = "store", *, stops: bool = True) -> Trouble:
    """Make a trouble that is half a minute old."""
    return Trouble(part=part, reason="it is away", since=NOW - 30_000, stops=stops)


def ready(*healths: EndpointHealth, pulses: dict[int, Pulse] | None = None) -> HealthAssessment:
    """Judge processes, each with one endpoint."""
    found = [
        ProcessHealth(pulse=(pulses or {}).get(number, pulse(number)), endpoints=(health,))
        for number, health in enumerate(healths)
    ]
    return readiness(found, ["shop"], patience=PATIENCE, now=NOW)


def ill(*troubles: Trouble) -> EndpointHealth:
    """Make an endpoint that works, with troubles."""
    return EndpointHealth(endpoint="shop", works=True, troubles=troubles)


def test_processes_that_turn_are_alive() -> None:
    """So are those that are starting, and those that nobody has started yet."""
    assert liveness([pulse(0), pulse(1, starts=True, silent=30.0)], PATIENCE).status is Level.OK
    assert liveness([], PATIENCE).status is Level.OK


def test_one_process_that_hangs_is_no_reason_to_restart_all() -> None:
    """The watchdog replaces it."""
    assessment = liveness([pulse(0), pulse(1, silent=10.1)], PATIENCE)
    assert assessment.status is Level.DEGRADED
    assert assessment.reasons == ("process 1 (pid 101) hangs: its event loop has been blocked for 10 s",)


def test_when_none_is_left_it_is_dead() -> None:
    """Whether they hang or have ended."""
    assessment = liveness([pulse(0, runs=False), pulse(1, silent=11.0)], PATIENCE)
    assert assessment.status is Level.FAILING
    assert assessment.reasons[0] == "process 0 has ended and will be replaced"


def test_ready_is_who_receives_and_has_no_trouble() -> None:
    """Without a reason to give."""
    assert ready(FINE, FINE) == HealthAssessment(
        status=Level.OK, reasons=(), processes=tuple(ProcessHealth(pulse=pulse(n), endpoints=(FINE,)) for n in (0, 1))
    )


def test_who_has_not_received_yet_is_not_ready() -> None:
    """It may be waiting for its servers."""
    assessment = ready(EndpointHealth(endpoint="shop"))
    assert assessment.status is Level.FAILING
    assert assessment.reasons == ("endpoint shop, process 0: is starting and has not connected to its servers yet",)
    assert readiness([ProcessHealth(pulse=pulse())], ["shop"], patience=PATIENCE, now=NOW).status is Level.FAILING


def test_a_store_that_is_away_is_told_with_its_age() -> None:
    """For one process of two that is degraded, for all of them failing."""
    assert ready(ill(trouble())).status is Level.FAILING
    assessment = ready(FINE, ill(trouble()))
    assert assessment.status is Level.DEGRADED
    assert assessment.reasons == ("endpoint shop, process 1: store failing for 30 s: it is away",)


def test_a_janitor_that_fails_stops_nobody() -> None:
    """Degraded, in however many processes."""
    assert ready(ill(trouble("janitor", stops=False))).status is Level.DEGRADED
    assert ready(ill(trouble("late bucket"))).status is Level.FAILING


def test_a_process_that_hangs_counts_for_nobody() -> None:
    """What it said when it was well is of no worth."""
    assert ready(FINE, pulses={0: pulse(silent=11.0)}).status is Level.FAILING
    assessment = ready(FINE, FINE, pulses={0: pulse(silent=11.0)})
    assert assessment.status is Level.DEGRADED
    assert "hangs" in assessment.reasons[0]


def test_one_endpoint_that_works_does_not_cover_for_another() -> None:
    """Each of them needs a process."""
    found = [ProcessHealth(pulse=pulse(), endpoints=(FINE, EndpointHealth(endpoint="mail")))]
    assert readiness(found, ["shop", "mail"], patience=PATIENCE, now=NOW).status is Level.FAILING


def test_a_process_that_holds_messages_without_progress_is_neither_live_nor_ready() -> None:
    """Its event loop turns all the same; one that handles slowly is fine."""
    slow, still = pulse(still=19.0), pulse(still=21.0)
    assert liveness([slow], PATIENCE).status is Level.OK
    assert ready(FINE, pulses={0: slow}).status is Level.OK
    assessment = liveness([still], PATIENCE)
    assert assessment.status is Level.FAILING
    assert assessment.reasons == ("process 0 (pid 100) holds messages and has made no progress for 21 s",)
    assert ready(FINE, pulses={0: still}).status is Level.FAILING
    assert liveness([still, pulse(1)], PATIENCE).status is Level.DEGRADED
