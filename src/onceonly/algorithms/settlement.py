"""Settlement: what is acknowledged, retried, dead-lettered or released, once it is known what became of each message.

Each order here is a rule: a retry copy is taken before its original is acknowledged, and a message is fenced before its dead
letter is stored. A copy that was not taken, and a letter that was not stored, leave the delivery where it is.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.blame import GivenUp, RunResult, peer_away, run
from onceonly.algorithms.intake import OTHER_BODY, DeadLetterDraft, PendingMessage, letter_for
from onceonly.algorithms.outbox import UnitResult, drop, finish
from onceonly.algorithms.remote_call import called_peers
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitRefused, ConflictError, RetryableError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send
from onceonly.model.record import Answer, Record
from onceonly.model.retry import UNCOUNTED, RetryDecision
from onceonly.model.ring import Undecidable
from onceonly.ports.bundle import Ports

NO_COPY = "It cannot be retried: the transport rejected the copy that counts the retry. The original is stored here"

ROTATION_SECONDS = 5.0
"""Seconds after which a message is looked at again whose bucket has not been rotated yet."""


class BatchReport(Struct, frozen=True, kw_only=True):
    """What became of the deliveries of a batch."""

    handled: int = 0
    """Handled and committed."""
    known: int = 0
    """Copies of messages that were handled before."""
    idle: int = 0
    """Messages among the known ones that had nothing to finish."""
    dropped: int = 0
    """Messages among the known ones that were not admitted, and have no record."""
    retried: int = 0
    """Failed, and sent again as a retry copy."""
    dead: int = 0
    """Given up, and stored as dead letters."""
    postponed: int = 0
    """Released, to be handled later."""
    conflicted: int = 0
    """Released after a conflict."""
    lost_race: int = 0
    """Those among the conflicted ones that a smaller batch would not have helped."""
    unknown: int = 0
    """Released because the outcome is unknown, or a system did not answer."""
    slot_not_ready: int = 0
    """Those among the retried and unknown ones whose time bucket is not ready."""
    needs_upgrade: int = 0
    """Those among the unknown ones that only a newer version can read."""
    failed: int = 0
    """Messages whose handler or commit failed. Each ends a unit of several messages that is not isolated."""
    trouble: tuple[str, ...] = ()
    """Errors of units that were not committed."""

    def __add__(self, other: "BatchReport") -> "BatchReport":
        if _NOTHING in (self, other):
            return self if other == _NOTHING else other
        return BatchReport(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


_NOTHING = BatchReport()


async def settle(items: Sequence[PendingMessage], ran: RunResult, ports: Ports) -> BatchReport:
    """Settle every delivery of these items."""
    of = {item.message.identity: item for item in items}
    done = _joined(ran.processed)
    report = await _finish(done, of, ports)
    report += await _drop(done.dropped, of, ports)
    report += await _retry_or_give_up(_failures(done, of), ports)
    report += await _await_peers(done, of, ports)
    report += BatchReport(failed=sum(failure.kind not in UNCOUNTED for _, failure in done.failed))
    report += await give_up(_mismatches(done, of, ports), ports)
    report += await _undecidable(
        [(of[undecidable.message.identity], undecidable.reason) for undecidable in done.undecidable], ports
    )
    return report + await _leave(done, ran, of, ports)


def _joined(parts: Sequence[UnitResult]) -> UnitResult:
    """Return what became of the messages of several units."""
    if len(parts) == 1:
        return parts[0]
    handled = frozenset(identity for part in parts for identity in part.handled)
    names = [name for name in UnitResult.__struct_fields__ if name != "handled"]
    return UnitResult(
        handled=handled, **{name: tuple(each for part in parts for each in getattr(part, name)) for name in names}
    )


def _failures(done: UnitResult, of: Mapping[Identity, PendingMessage]) -> list[tuple[PendingMessage, Failure]]:
    """Return the messages that failed, and behind them those whose effects the broker refused."""
    failed = [(of[identity], failure) for identity, failure in done.failed]
    return failed + [
        (of[record.identity], _refusal(record)) for record, answer in done.undispatched if answer is Answer.REFUSED
    ]


def _refusal(record: Record) -> Failure:
    return Failure(kind=FailureKind.REFUSED, reason=f"handled, but {record.rejection}")


def _mismatches(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> list[DeadLetterDraft]:
    """Return a dead letter for each delivery with another body than that handled before.

    Where admission knows of the other body, an earlier attempt at this one may still be committed, so it is fenced.
    """
    here = [_mismatch(of[identity], delivery, ports) for identity in done.mismatched for delivery in of[identity].deliveries]
    elsewhere = [of[identity] for identity in done.mismatched_elsewhere]
    return here + [replace(_mismatch(item, d, ports), gives_up=item.message) for item in elsewhere for d in item.deliveries]


def _mismatch(item: PendingMessage, delivery: Delivery, ports: Ports) -> DeadLetterDraft:
    return letter_for(delivery, item.message, OTHER_BODY, ports)


async def _leave(done: UnitResult, ran: RunResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    """Release what comes again uncounted."""
    postponed = [of[identity] for identity in done.postponed]
    unknown = [of[record.identity] for record, answer in done.undispatched if answer is Answer.UNKNOWN]
    await release_messages([*postponed, *unknown, *ran.conflicted, *ran.unknown], ports)
    return BatchReport(
        postponed=count_deliveries(postponed),
        conflicted=count_deliveries(ran.conflicted),
        lost_race=count_deliveries(ran.lost_race),
        unknown=count_deliveries([*unknown, *ran.unknown]),
        needs_upgrade=count_deliveries(ran.needs_upgrade),
        trouble=ran.trouble,
    )


async def _await_peers(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    """Put off, uncounted, what is committed and waits for a peer that is away. The worker does not slow down for it."""
    waiting = [(of[record.identity], record) for record, answer in done.undispatched if answer is Answer.AWAY]
    if isinstance(ports.handlers, GivenUp):
        await release_messages([item for item, _ in waiting], ports)
        return BatchReport(unknown=count_deliveries(item for item, _ in waiting))
    decided = [(item, decide(item, peer_away(called_peers(record)), ports)) for item, record in waiting]
    return await retry(decided, ports, uncopied=partial(put_back, ports=ports))


async def _finish(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    finished = done.finished
    if not finished:
        return BatchReport()
    items = [of[record.identity] for record in finished]
    try:
        await finish(finished, [delivery for item in items for delivery in item.deliveries], ports)
    except (RetryableError, ConflictError):
        await release_messages(items, ports)
        return BatchReport(unknown=count_deliveries(items))
    handled = sum(record.identity in done.handled for record in finished)
    idle = sum(not (record.is_pending or record.issued or record.identity in done.handled) for record in finished)
    return BatchReport(handled=handled, known=count_deliveries(items) - handled, idle=idle)


async def _drop(dropped: Sequence[Record], of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    if not dropped:
        return BatchReport()
    items = [of[record.identity] for record in dropped]
    try:
        await drop(dropped, [delivery for item in items for delivery in item.deliveries], ports)
    except (RetryableError, ConflictError):
        await release_messages(items, ports)
        return BatchReport(unknown=count_deliveries(items))
    return BatchReport(known=count_deliveries(items), dropped=len(items))


async def _retry_or_give_up(failed: Sequence[tuple[PendingMessage, Failure]], ports: Ports) -> BatchReport:
    decided = [(item, failure, decide(item, failure, ports)) for item, failure in failed]
    again = [(item, decision) for item, failure, decision in decided if not decision.give_up and failure.kind not in UNCOUNTED]
    report = await retry(again, ports)
    put_off = [(item, decision) for item, failure, decision in decided if not decision.give_up and failure.kind in UNCOUNTED]
    report += await retry(put_off, ports, uncopied=partial(put_back, ports=ports))
    return report + await give_up(
        [_final(item, failure, decision, ports) for item, failure, decision in decided if decision.give_up], ports
    )


async def _undecidable(undecidable: Sequence[tuple[PendingMessage, Undecidable]], ports: Ports) -> BatchReport:
    """Have those wait whose bucket can be rotated; the others are dead letters, for a person to decide."""
    waiting = [item for item, reason in undecidable if reason is Undecidable.SLOT_NOT_READY]
    later = Failure(kind=FailureKind.LATER, reason=Undecidable.SLOT_NOT_READY.value, delay=ROTATION_SECONDS)
    decided = [(item, decide(item, later, ports)) for item in waiting]
    report = await retry(decided, ports, uncopied=partial(put_back, ports=ports))
    finals = [
        (item, Failure(kind=FailureKind.REJECTED, reason=reason.value))
        for item, reason in undecidable
        if reason is not Undecidable.SLOT_NOT_READY
    ]
    report += await give_up([_final(item, failure, uncounted(item), ports) for item, failure in finals], ports)
    return report + BatchReport(slot_not_ready=count_deliveries(waiting))


async def retry(
    decided: Sequence[tuple[PendingMessage, RetryDecision]],
    ports: Ports,
    *,
    alone: bool = False,
    held: bool = False,
    uncopied: Callable[[PendingMessage, RetryDecision], Awaitable[BatchReport]] | None = None,
) -> BatchReport:
    """Send a copy that carries the count, then ack the original; a copy that was not taken leaves the original.

    A copy that is refused can never be made: `uncopied` settles such a message, and without it the message is given up.
    """
    if not decided:
        return BatchReport()
    try:
        answers = await ports.transport.send(
            [_copy(item, decision, ports, alone=alone, held=held) for item, decision in decided]
        )
    except RetryableError:
        answers = tuple(Answer.UNKNOWN for _ in decided)
    taken = [item for (item, _), answer in zip(decided, answers, strict=True) if answer is Answer.TAKEN]
    # Crash here, "after-retry-copy": 1 copy taken, 2 original not acked, 3 both come, 4 one claim: handled once.
    await ack([delivery for item in taken for delivery in item.deliveries], ports)
    left = [item for (item, _), answer in zip(decided, answers, strict=True) if answer is Answer.UNKNOWN]
    await release_messages(left, ports)
    report = BatchReport(retried=count_deliveries(taken), unknown=count_deliveries(left))
    for (item, decision), answer in zip(decided, answers, strict=True):
        if answer is Answer.REFUSED:
            report += await (uncopied(item, decision) if uncopied else _end(item, decision, ports))
    return report


def _copy(item: PendingMessage, decision: RetryDecision, ports: Ports, *, alone: bool, held: bool) -> Send:
    return Send(
        message=item.message,
        to=ports.endpoint,
        due=decision.due,
        attempts=decision.attempts,
        history=decision.history,
        alone=alone or item.alone,
        held=item.held + held,
    )


async def put_back(item: PendingMessage, _: RetryDecision, ports: Ports) -> BatchReport:
    await release_messages([item], ports)
    return BatchReport(unknown=count_deliveries([item]))


async def _end(item: PendingMessage, decision: RetryDecision, ports: Ports) -> BatchReport:
    """Return a message up that cannot be sent back. It goes through its unit: it may be committed with pending effects."""
    reason = f"{decision.history[-1].reason}. {NO_COPY}" if decision.history else NO_COPY
    refused = Failure(kind=FailureKind.REJECTED, reason=reason)
    return await without_handler(item, GivenUp(ports.handlers, replace(decision, give_up=True), refused), ports)


async def without_handler(item: PendingMessage, handlers: "GivenUp", ports: Ports) -> BatchReport:
    """Take a message through its unit that is given up. Its failure is not counted again."""
    hopeless = ports._replace(handlers=handlers)
    return replace(await settle([item], await run((item,), hopeless), hopeless), failed=0)


async def give_up(letters: Sequence[DeadLetterDraft], ports: Ports) -> BatchReport:
    """Fence, store dead letters, then ack; what could not be stored, or is committed after all, is released.

    This is the only place where a message is given up. An earlier attempt may still be in progress: if it were committed after
    the ack, its effects would never be sent. So the fence comes first. A record that the fence finds means that the message was
    handled: the message is redelivered, and `begin` answers "pending".
    """
    report = BatchReport()
    for letter in letters:
        try:
            if await _is_committed(letter.gives_up, ports):
                await release(letter.deliveries, ports)
                report += BatchReport(conflicted=len(letter.deliveries), lost_race=len(letter.deliveries))
                continue
            await ports.dead_letters.add(letter.letter)
        except (RetryableError, ConflictError):
            await release(letter.deliveries, ports)
            report += BatchReport(unknown=len(letter.deliveries))
        else:
            # Crash here, "after-dead-letter": 1 stored, 2 not acked, 3 it comes again, 4 the letter is stored once.
            await ack(letter.deliveries, ports)
            report += BatchReport(dead=len(letter.deliveries))
    return report


def _final(item: PendingMessage, failure: Failure, decision: RetryDecision, ports: Ports) -> DeadLetterDraft:
    first = item.deliveries[0]
    letter = DeadLetter(
        endpoint=ports.endpoint,
        reason=failure.reason,
        headers=first.headers,
        body=first.body,
        message=item.message,
        attempts=decision.attempts,
        history=decision.history,
        finish_only=failure.kind is FailureKind.REFUSED,
    )
    return DeadLetterDraft(letter, item.deliveries, None if letter.finish_only else item.message)  # that one is committed


async def _is_committed(message: Message | None, ports: Ports) -> bool:
    """Check whether a message is committed; if it is not, no attempt that began earlier can be.

    Raises ConflictError, RetryableError.
    """
    if message is None:
        return False
    try:
        return await ports.fence.fence(ports.store.unit_key(message), message.identity, message) is not None
    except CommitRefused:  # its unit can never be committed
        return False


async def release_messages(items: Sequence[PendingMessage], ports: Ports) -> None:
    """Return items back uncounted."""
    await release([delivery for item in items for delivery in item.deliveries], ports)


async def release(deliveries: Sequence[Delivery], ports: Ports) -> None:
    if deliveries:
        with suppress(RetryableError):  # its lease ends by itself
            await ports.transport.release(deliveries)


async def ack(deliveries: Sequence[Delivery], ports: Ports) -> None:
    with suppress(RetryableError):  # it comes again, and everything it asks for is done already
        await ports.transport.ack(deliveries)


def decide(item: PendingMessage, failure: Failure, ports: Ports) -> RetryDecision:
    return ports.handlers.decide_retry(item.message, failure, attempts=item.attempts, history=item.history)


def uncounted(item: PendingMessage) -> RetryDecision:
    return RetryDecision(give_up=False, due=0, attempts=item.attempts, history=item.history)


def count_deliveries(items: Iterable[PendingMessage]) -> int:
    return sum(len(item.deliveries) for item in items)
