"""Deaths of processes: which message was being handled, what counts against it, and how it runs without others next to it."""

from collections.abc import Sequence
from functools import partial

from onceonly.algorithms.blame import GivenUp, run
from onceonly.algorithms.intake import PendingMessage
from onceonly.algorithms.settlement import (
    BatchReport,
    count_deliveries,
    decide,
    put_back,
    release_messages,
    retry,
    settle,
    uncounted,
    without_handler,
)
from onceonly.model.errors import ConflictError, RetryableError, error_text
from onceonly.model.message import Failure, FailureKind
from onceonly.model.retry import RetryDecision
from onceonly.ports.bundle import Ports

KILLED = Failure(kind=FailureKind.KILLED, reason="the process ended while the handler of this message was running")

MOST_HELD = 20
"""How many deaths of processes that only held a message are believed to be another's. After that it runs alone."""


async def isolate_suspects(suspects: Sequence[PendingMessage], ports: Ports) -> BatchReport:
    """Send each suspect again. Count the death of its process only where its handler was running.

    A process that dies holds many messages, and runs the handler of one. Its supervisor can determine which one. What was only
    held is sent again and runs with the others. A suspect runs alone if that is unknown, or if it was held too often.
    """
    if not suspects:
        return BatchReport()
    try:
        deaths = await ports.run_markers.find_dead([item.message.identity for item in suspects])
    except RetryableError as error:
        await release_messages(suspects, ports)
        return BatchReport(unknown=count_deliveries(suspects), trouble=(error_text(error),))
    counted = [(item, deaths.counted.get(item.message.identity, -1)) for item in suspects]
    innocent = [item for item, attempts in counted if attempts < item.attempts]
    most = MOST_HELD if deaths.explained else 0
    held = [item for item in innocent if item.held < most]
    unclear = [item for item in innocent if item.held >= most]
    now = partial(_run_now, ports=ports)  # where no copy can carry the mark
    report = BatchReport()
    for item, attempts in counted:  # first: evidence is removed when it is returned
        if attempts >= item.attempts:
            report += await _count_death(item, attempts, ports)
    report += await retry([(item, uncounted(item)) for item in held], ports, held=True, uncopied=now)
    return report + await retry([(item, uncounted(item)) for item in unclear], ports, alone=True, uncopied=now)


async def run_alone(item: PendingMessage, ports: Ports) -> BatchReport:
    """Run one message that may end its process, behind a durable record: what another process finds of it is its death."""
    identity = item.message.identity
    try:
        started = await ports.run_markers.begin(identity, item.attempts)
    except (RetryableError, ConflictError) as error:
        await ports.run_markers.finish(identity)  # it may have been recorded, and nothing else would end it
        await release_messages([item], ports)
        return BatchReport(unknown=count_deliveries([item]), trouble=(error_text(error),))
    if started.died is not None:
        return await _count_death(item, started.died, ports)
    if started.wait:
        later = Failure(kind=FailureKind.LATER, reason="another attempt may be in progress", delay=started.wait)
        return await retry([(item, decide(item, later, ports))], ports, uncopied=partial(put_back, ports=ports))
    # Crash here: 1 recorded, 2 the process died, 3 the message comes again, 4 the record is found: it is counted.
    ran = await run((item,), ports)
    await ports.run_markers.finish(identity)  # before its delivery is settled: a redelivery afterwards is not a death
    return await settle((item,), ran, ports)


async def _run_now(item: PendingMessage, _: RetryDecision, ports: Ports) -> BatchReport:
    return await run_alone(item, ports)


async def _count_death(item: PendingMessage, attempts: int, ports: Ports) -> BatchReport:
    """Count the death of a run that began with `attempts`.

    A message whose runs died too often still goes through its unit, without its handler. It may have pending effects.
    """
    decision = ports.handlers.decide_retry(item.message, KILLED, attempts=attempts, history=item.history)
    if not decision.give_up:
        return await retry([(item, decision)], ports, alone=True)
    return await without_handler(item, GivenUp(ports.handlers, decision, KILLED), ports)
