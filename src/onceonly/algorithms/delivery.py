"""The delivery loop: from deliveries to settled deliveries. Each one is acknowledged, released, retried or dead-lettered.

    split     separate control messages from users' messages; `algorithms/control` checks them, and they are never counted
    sort      group the copies of one message; set aside what cannot be read or has to wait; isolate suspects (`intake`)
    run       one unit of work (`outbox.process`), and the search for the message that a failure belongs to (`blame`)
    settle    finish what is done; copy, then ack, what is retried; release the rest (`settlement`)
    give up   fence, so that no earlier attempt is committed later; store the dead letter; then ack (`settlement`)

Only a message's own failure is counted: its handler's, its process's death (`deaths`), or a commit refused in a unit of one.
Conflicts, OutcomeUnknown and failing ports release the delivery uncounted, so an outage dead-letters nothing. One exception: a
unit of one that fails for such a reason, while the same unit without its handler can be committed. It counts when it repeats
(`model.retry`).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from onceonly.algorithms.blame import run
from onceonly.algorithms.control import ControlOutcome, check_transaction, control_of, split_controls
from onceonly.algorithms.deaths import isolate_suspects, run_alone
from onceonly.algorithms.intake import PendingMessage, letter_for, sort
from onceonly.algorithms.settlement import BatchReport, ack, give_up, release, settle
from onceonly.model.errors import CommitRefused, ConflictError, RetryableError, error_text
from onceonly.model.message import Delivery
from onceonly.ports.bundle import Ports
from onceonly.ports.transactions import Controls

Work = Callable[[], Awaitable[BatchReport]]

Works = Sequence[Work]


async def one_after_another(works: Works) -> BatchReport:
    """Do one work after another."""
    report = BatchReport()
    for work in works:
        report += await work()
    return report


async def deliver(
    deliveries: Sequence[Delivery],
    ports: Ports,
    do: Callable[[Works], Awaitable[BatchReport]] = one_after_another,
    *,
    isolated: bool = False,
) -> BatchReport:
    """Take a batch through. Returns when every delivery is settled or released.

    Its units have nothing to do with each other: `do` may do them side by side. `isolated` is for a batch in which a handler
    is likely to fail: it is undone alone, and the others run once. So is a batch with a message that failed before.
    """
    report, controls = BatchReport(), ports.controls
    if controls:
        received, deliveries = split_controls(deliveries)
        report += await do([partial(_settle_control, delivery, controls, ports) for delivery in received])
    intake = sort(deliveries, ports)
    await release(intake.back, ports)
    report += await give_up(intake.letters, ports) + BatchReport(postponed=len(intake.back))
    report += await isolate_suspects(intake.suspects, ports)
    isolated = isolated or any(delivery.attempts for delivery in deliveries)
    report += await do([partial(_take_through, unit, ports, isolated=isolated) for unit in intake.units])
    for item in intake.alone:  # after all others: a process that dies then holds few other messages
        report += await run_alone(item, ports)
    return report


async def _settle_control(delivery: Delivery, controls: Controls, ports: Ports) -> BatchReport:
    try:
        outcome = await check_transaction(control_of(delivery), controls, ports)
    except (ValueError, CommitRefused) as error:  # it is none, or what it leads to was not written by us
        return await give_up([letter_for(delivery, None, f"the control message cannot be processed: {error}", ports)], ports)
    except (RetryableError, ConflictError) as error:
        await release([delivery], ports)
        return BatchReport(unknown=1, trouble=(error_text(error),))
    if outcome is ControlOutcome.UNKNOWN:
        await release([delivery], ports)
        return BatchReport(unknown=1)
    await ack([delivery], ports)
    return BatchReport(known=1)


async def _take_through(unit: Sequence[PendingMessage], ports: Ports, *, isolated: bool) -> BatchReport:
    return await settle(unit, await run(unit, ports, isolated=isolated), ports)
