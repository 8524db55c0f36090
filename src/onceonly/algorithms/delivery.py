"""The delivery shell: from deliveries to settled deliveries. Every one is acked, released, retried or dead-lettered.

    apart     tell control messages from users': those are looked at, `algorithms/control`, and never counted
    sort      group the copies of one message; set aside what cannot be read or has to wait; single out suspects
    run       one unit of work (`outbox.process`); on a message's own failure once more, isolated; then by halves.
              A message whose unit fails for a reason that may not be its own runs again in a unit of one, behind the others
    settle    finish what is done; copy, then ack, what is retried; release the rest
    give up   fence, so that no earlier attempt is committed later; store the dead letter; then ack

Only a message's own failure is counted: its handler's, its process's death, or a commit refused in a unit of one. Conflicts,
OutcomeUnknown and failing ports release the delivery uncounted, so an outage dead-letters nothing. One exception: a unit of one
that fails for such a reason, while the same unit without its handler can be committed. It counts when it repeats
(`model.retry`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.control import ControlOutcome, apart, control_of, look
from onceonly.algorithms.intake import OTHER_BODY, DeadLetterDraft, PendingMessage, letter_for, sort
from onceonly.algorithms.outbox import UnitResult, drop, finish, process
from onceonly.algorithms.remote_call import awaited, called
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import (
    CommitRefused,
    ConflictError,
    HandlerAbandoned,
    HandlerFailed,
    LockTimeout,
    PeerAway,
    PermanentFailure,
    RetryableError,
    Unable,
    UpgradeRequired,
    VersionConflict,
)
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send, Unreadable
from onceonly.model.record import Answer, Decision, Record
from onceonly.model.remote import Response
from onceonly.model.retry import AWAY, BLAMED, UNCOUNTED, RetryDecision
from onceonly.model.ring import Undecidable
from onceonly.ports.bundle import Ports
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources
from onceonly.ports.transactions import Controls

_AGAIN_ALONE = frozenset({FailureKind.UNKNOWN, FailureKind.ALONE})
"""Failures of a message in a unit of several after which it runs in a unit of one."""
KILLED = Failure(kind=FailureKind.KILLED, reason="the process ended while the handler of this message was running")
NO_COPY = "It cannot be retried: the transport rejected the copy that counts the retry. The original is stored here"
MOST_HELD = 20
"""How many deaths of processes that only held a message are believed to be another's. After that it runs alone."""
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


class RunResult(Struct, frozen=True, kw_only=True):
    """What became of some items: unit by unit, and those whose unit as a whole failed."""

    processed: tuple[UnitResult, ...] = ()
    conflicted: tuple[PendingMessage, ...] = ()
    lost_race: tuple[PendingMessage, ...] = ()
    unknown: tuple[PendingMessage, ...] = ()
    needs_upgrade: tuple[PendingMessage, ...] = ()
    trouble: tuple[str, ...] = ()

    def __add__(self, other: "RunResult") -> "RunResult":
        return RunResult(
            processed=self.processed + other.processed,
            conflicted=self.conflicted + other.conflicted,
            lost_race=self.lost_race + other.lost_race,
            unknown=self.unknown + other.unknown,
            needs_upgrade=self.needs_upgrade + other.needs_upgrade,
            trouble=self.trouble + other.trouble,
        )


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
        looks, deliveries = apart(deliveries)
        report += await do([partial(_look_at, delivery, controls, ports) for delivery in looks])
    intake = sort(deliveries, ports)
    await _release(intake.back, ports)
    report += await give_up(intake.letters, ports) + BatchReport(postponed=len(intake.back))
    report += await set_apart(intake.suspects, ports)
    isolated = isolated or any(delivery.attempts for delivery in deliveries)
    report += await do([partial(_take_through, unit, ports, isolated=isolated) for unit in intake.units])
    for item in intake.alone:  # after all others: a process that dies then holds few other messages
        report += await _run_alone(item, ports)
    return report


async def _look_at(delivery: Delivery, controls: Controls, ports: Ports) -> BatchReport:
    try:
        looked = await look(control_of(delivery), controls, ports)
    except (ValueError, CommitRefused) as error:  # it is none, or what it leads to was not written by us
        return await give_up([letter_for(delivery, None, f"the control message cannot be processed: {error}", ports)], ports)
    except (RetryableError, ConflictError) as error:
        await _release([delivery], ports)
        return BatchReport(unknown=1, trouble=(_words(error),))
    if looked is ControlOutcome.UNKNOWN:
        await _release([delivery], ports)
        return BatchReport(unknown=1)
    await _ack([delivery], ports)
    return BatchReport(known=1)


async def _take_through(unit: Sequence[PendingMessage], ports: Ports, *, isolated: bool) -> BatchReport:
    return await settle(unit, await run(unit, ports, isolated=isolated), ports)


async def set_apart(suspects: Sequence[PendingMessage], ports: Ports) -> BatchReport:
    """Send each suspect again. Count the death of its process only where its handler was running.

    A process that dies holds many messages, and runs the handler of one. Its supervisor can determine which one. What was only
    held is sent again and runs with the others. A suspect runs alone if that is unknown, or if it was held too often.
    """
    if not suspects:
        return BatchReport()
    try:
        deaths = await ports.starts.died([item.message.identity for item in suspects])
    except RetryableError as error:
        await release(suspects, ports)
        return BatchReport(unknown=_count(suspects), trouble=(_words(error),))
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
    report += await retry([(item, _uncounted(item)) for item in held], ports, held=True, uncopied=now)
    return report + await retry([(item, _uncounted(item)) for item in unclear], ports, alone=True, uncopied=now)


async def _run_alone(item: PendingMessage, ports: Ports) -> BatchReport:
    """Run one message that may end its process, behind a durable record: what another process finds of it is its death."""
    identity = item.message.identity
    try:
        started = await ports.starts.begin(identity, item.attempts)
    except (RetryableError, ConflictError) as error:
        await ports.starts.ended(identity)  # it may have been recorded, and nothing else would end it
        await release([item], ports)
        return BatchReport(unknown=_count([item]), trouble=(_words(error),))
    if started.died is not None:
        return await _count_death(item, started.died, ports)
    if started.wait:
        later = Failure(kind=FailureKind.LATER, reason="another attempt may be in progress", delay=started.wait)
        return await retry([(item, _decide(item, later, ports))], ports, uncopied=partial(_put_back, ports=ports))
    # Crash here: 1 recorded, 2 the process died, 3 the message comes again, 4 the record is found: it is counted.
    ran = await run((item,), ports)
    await ports.starts.ended(identity)  # before its delivery is settled: a redelivery afterwards is not a death
    return await settle((item,), ran, ports)


async def _run_now(item: PendingMessage, _: RetryDecision, ports: Ports) -> BatchReport:
    return await _run_alone(item, ports)


async def _put_back(item: PendingMessage, _: RetryDecision, ports: Ports) -> BatchReport:
    await release([item], ports)
    return BatchReport(unknown=_count([item]))


async def _count_death(item: PendingMessage, attempts: int, ports: Ports) -> BatchReport:
    """Count the death of a run that began with `attempts`.

    A message whose runs died too often still goes through its unit, without its handler. It may have pending effects.
    """
    verdict = ports.handlers.verdict(item.message, KILLED, attempts=attempts, history=item.history)
    if not verdict.give_up:
        return await retry([(item, verdict)], ports, alone=True)
    return await _without_handler(item, GivenUp(ports.handlers, verdict), ports)


async def _without_handler(item: PendingMessage, handlers: "GivenUp", ports: Ports) -> BatchReport:
    """Take a message through its unit that is given up. Its failure is not counted again."""
    hopeless = ports._replace(handlers=handlers)
    return replace(await settle([item], await run((item,), hopeless), hopeless), failed=0)


async def run(items: Sequence[PendingMessage], ports: Ports, *, isolated: bool = False) -> RunResult:
    """Run items as one unit, and find those to blame when it fails: any number of bad handlers costs one extra pass.

    An isolated unit needs no extra pass for bad handlers.

    Those whose units failed before, perhaps because of them, run behind the others, each in a unit of its own. So do those
    whose handlers need a database transaction for themselves.
    """
    runs_alone = ports.handlers.runs_alone
    alone = [item for item in items if item.doubted or runs_alone(item.message)] if len(items) > 1 else []
    if not alone:
        return await _run(items, ports, isolated=isolated and len(items) > 1)
    others = [item for item in items if item not in alone]
    return await _each_alone(alone, await run(others, ports, isolated=isolated) if others else RunResult(), ports)


async def _run(items: Sequence[PendingMessage], ports: Ports, *, isolated: bool = False, seen: bool = False) -> RunResult:
    """Run items as one unit. `seen`: another unit was committed since this batch was received."""
    lost: ConflictError | RetryableError | None = None
    try:
        processed = await process([item.message for item in items], ports, isolated=isolated)
    except (HandlerFailed, CommitRefused) as error:
        if len(items) == 1:
            return RunResult(processed=(UnitResult(failed=((items[0].message.identity, _failure(error)),)),))
    except (ConflictError, RetryableError) as error:
        lost = error
    else:
        again = [identity for identity, failure in processed.failed if failure.kind in _AGAIN_ALONE]
        failed = tuple(each for each in processed.failed if each[0] not in again)
        ran = RunResult(processed=(replace(processed, failed=failed),))
        return await _each_alone([item for item in items if item.message.identity in again], ran, ports)
    if lost is not None:  # not inside `except`: tracebacks of the other messages would begin with this error
        return await _find(items, lost, ports, isolated=isolated, seen=seen)
    if any(ports.handlers.runs_alone(item.message) for item in items):  # one has just shown that it must
        return await run(items, ports, isolated=isolated)
    if not isolated:
        return await _run(items, ports, isolated=True)
    half = len(items) // 2  # what only COMMIT shows has no name on it
    return await _run(items[:half], ports, isolated=True) + await _run(items[half:], ports, isolated=True)


async def _each_alone(items: Sequence[PendingMessage], ran: RunResult, ports: Ports) -> RunResult:
    """Run each of these in a unit of its own, after what `ran`; not when that shows an outage."""
    for item in items:
        if ran.unknown:
            return ran + RunResult(unknown=tuple(items[items.index(item) :]))
        ran += await _run((item,), ports, seen=any(part.handled for part in ran.processed))
    return ran


async def _find(  # noqa: PLR0911 - one for each kind of failure
    items: Sequence[PendingMessage], error: ConflictError | RetryableError, ports: Ports, *, isolated: bool, seen: bool
) -> RunResult:
    """Find out whether one message causes a failure of its unit.

    Only the message whose handler was running can be the cause. It runs once more, in a unit of its own.
    """
    if isinstance(error, LockTimeout) and not isolated and len(items) > 1:
        return await _run(items, ports, isolated=True)  # those that wait for a lock are left out
    if isinstance(error, PeerAway):
        return await _without_peer(error, items, ports, isolated=isolated)
    suspect = next((item for item in items if item.message.identity == error.during), None)
    if suspect is None or isinstance(error, VersionConflict | UpgradeRequired):
        return _nobodys(items, error)
    if len(items) == 1:
        return await _doubt(suspect, error, ports, seen=seen)
    others = [item for item in items if item is not suspect]
    if isinstance(error, HandlerAbandoned):
        return _abandoned(suspect, error) + await _run(others, ports, isolated=isolated)
    if isinstance(error, LockTimeout):  # the time-out ended the unit
        return _nobodys(others, error) + _locked(suspect, error)
    # a lost race: the others are released, and the next batch is half as large
    ran = _nobodys(others, error) if isinstance(error, ConflictError) else await _run(others, ports, isolated=True)
    return _nobodys([suspect], error) + ran if ran.unknown else await _each_alone([suspect], ran, ports)


async def _doubt(item: PendingMessage, error: ConflictError | RetryableError, ports: Ports, *, seen: bool) -> RunResult:
    """Doubt a message whose unit of one failed, if the same unit without its handler is committed now.

    That commit also waits for an earlier attempt, so what it finds new was not committed. A store that cannot write for now may
    still commit a claim: only another handled unit shows that it can.
    """
    if isinstance(error, LockTimeout):
        return _locked(item, error)
    if isinstance(error, HandlerAbandoned):
        return _abandoned(item, error)
    if ports.store.unit_key(item.message) or (isinstance(error, Unable) and not seen):
        return _nobodys([item], error)
    try:
        is_its_own = await _is_committed_without(item.message, ports)
    except (ConflictError, RetryableError):
        is_its_own = False
    if not is_its_own:
        return _nobodys([item], error)
    unknown = Failure(kind=FailureKind.UNKNOWN, reason=f"{BLAMED}: {_words(error)}")
    return RunResult(processed=(UnitResult(failed=((item.message.identity, unknown),)),))


def _abandoned(item: PendingMessage, error: HandlerAbandoned) -> RunResult:
    """Count a failure of the handler itself, which took its unit with it."""
    return RunResult(processed=(UnitResult(failed=((item.message.identity, error.failure),)),))


async def _without_peer(error: PeerAway, items: Sequence[PendingMessage], ports: Ports, *, isolated: bool) -> RunResult:
    """Put off, uncounted, all messages that need the peer that is away. The others do not wait for it."""
    waiting = {item.message.identity for item in items if error.peer and awaited(item.message) == error.peer}
    held = [item for item in items if item.message.identity in error.needed_by | waiting]
    if not held or isinstance(ports.handlers, GivenUp):  # a message that is given up only waits for it
        return _nobodys(items, error)
    away = _away(error.peer)
    ran = RunResult(processed=(UnitResult(failed=tuple((item.message.identity, away) for item in held)),))
    others = [item for item in items if item not in held]
    return ran + await _run(others, ports, isolated=isolated) if others else ran


def _locked(item: PendingMessage, error: LockTimeout) -> RunResult:
    locked = Failure(kind=FailureKind.LOCKED, reason=_words(error))
    return RunResult(processed=(UnitResult(failed=((item.message.identity, locked),)),))


async def _is_committed_without(message: Message, ports: Ports) -> bool:
    """Commit a unit with this message and without its handler, if the message is new."""
    unit = await ports.store.begin([message])
    try:
        if not unit.found.new:
            unit.abandon()
            return False
        await unit.commit(())
    except BaseException:
        unit.abandon()
        raise
    return True


def _nobodys(items: Sequence[PendingMessage], error: ConflictError | RetryableError) -> RunResult:
    trouble, them = (_words(error),), tuple(items)
    if isinstance(error, ConflictError):
        return RunResult(conflicted=them, lost_race=them if isinstance(error, VersionConflict) else (), trouble=trouble)
    return RunResult(unknown=them, needs_upgrade=them if isinstance(error, UpgradeRequired) else (), trouble=trouble)


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
        answers = await ports.transport.send([_copy(item, verdict, ports, alone=alone, held=held) for item, verdict in decided])
    except RetryableError:
        answers = tuple(Answer.UNKNOWN for _ in decided)
    taken = [item for (item, _), answer in zip(decided, answers, strict=True) if answer is Answer.TAKEN]
    # Crash here, "after-retry-copy": 1 copy taken, 2 original not acked, 3 both come, 4 one claim: handled once.
    await _ack([delivery for item in taken for delivery in item.deliveries], ports)
    left = [item for (item, _), answer in zip(decided, answers, strict=True) if answer is Answer.UNKNOWN]
    await release(left, ports)
    report = BatchReport(retried=_count(taken), unknown=_count(left))
    for (item, verdict), answer in zip(decided, answers, strict=True):
        if answer is Answer.REFUSED:
            report += await (uncopied(item, verdict) if uncopied else _end(item, verdict, ports))
    return report


async def _end(item: PendingMessage, verdict: RetryDecision, ports: Ports) -> BatchReport:
    """Give a message up that cannot be sent back. It goes through its unit: it may be committed with pending effects."""
    reason = f"{verdict.history[-1].reason}. {NO_COPY}" if verdict.history else NO_COPY
    refused = Failure(kind=FailureKind.REJECTED, reason=reason)
    return await _without_handler(item, GivenUp(ports.handlers, replace(verdict, give_up=True), refused), ports)


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
                await _release(letter.deliveries, ports)
                report += BatchReport(conflicted=len(letter.deliveries), lost_race=len(letter.deliveries))
                continue
            await ports.dead_letters.add(letter.letter)
        except (RetryableError, ConflictError):
            await _release(letter.deliveries, ports)
            report += BatchReport(unknown=len(letter.deliveries))
        else:
            # Crash here, "after-dead-letter": 1 stored, 2 not acked, 3 it comes again, 4 the letter is stored once.
            await _ack(letter.deliveries, ports)
            report += BatchReport(dead=len(letter.deliveries))
    return report


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


async def release(items: Sequence[PendingMessage], ports: Ports) -> None:
    """Give items back uncounted."""
    await _release([delivery for item in items for delivery in item.deliveries], ports)


class GivenUp:
    """Handlers of a message whose handler never runs again: its process died too often, say. Its verdict is final."""

    def __init__(self, handlers: Handlers, verdict: RetryDecision, failure: Failure = KILLED) -> None:
        """Keep the verdict, and why."""
        self._handlers = handlers
        self._verdict = verdict
        self._failure = failure

    def read(self, delivery: Delivery) -> Message | Unreadable:
        """Read as ever."""
        return self._handlers.read(delivery)

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Put each message into a batch of its own."""
        return [(message,) for message in messages]

    def runs_alone(self, message: Message) -> bool:
        """Return False: no handler runs."""
        return False

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        """Fail at once."""
        raise HandlerFailed(self._failure)

    async def handle_batch(self, *_: object) -> Sequence[Decision]:
        """Fail at once."""
        raise HandlerFailed(self._failure)

    def verdict(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        """Give the verdict."""
        return self._verdict


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


def _mismatches(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> list[DeadLetterDraft]:
    """Return a dead letter for each delivery with another body than that handled before.

    Where admission knows of the other body, an earlier attempt at this one may still be committed, so it is fenced.
    """
    here = [_mismatch(of[identity], delivery, ports) for identity in done.mismatched for delivery in of[identity].deliveries]
    elsewhere = [of[identity] for identity in done.mismatched_elsewhere]
    return here + [replace(_mismatch(item, d, ports), gives_up=item.message) for item in elsewhere for d in item.deliveries]


async def _leave(done: UnitResult, ran: RunResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    """Release what comes again uncounted."""
    postponed = [of[identity] for identity in done.postponed]
    unknown = [of[record.identity] for record, answer in done.undispatched if answer is Answer.UNKNOWN]
    await release([*postponed, *unknown, *ran.conflicted, *ran.unknown], ports)
    return BatchReport(
        postponed=_count(postponed),
        conflicted=_count(ran.conflicted),
        lost_race=_count(ran.lost_race),
        unknown=_count([*unknown, *ran.unknown]),
        needs_upgrade=_count(ran.needs_upgrade),
        trouble=ran.trouble,
    )


async def _await_peers(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    """Put off, uncounted, what is committed and waits for a peer that is away. The worker does not slow down for it."""
    waiting = [(of[record.identity], record) for record, answer in done.undispatched if answer is Answer.AWAY]
    if isinstance(ports.handlers, GivenUp):
        await release([item for item, _ in waiting], ports)
        return BatchReport(unknown=_count(item for item, _ in waiting))
    decided = [(item, _decide(item, _away(called(record)), ports)) for item, record in waiting]
    return await retry(decided, ports, uncopied=partial(_put_back, ports=ports))


async def _finish(done: UnitResult, of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    finished = done.finished
    if not finished:
        return BatchReport()
    items = [of[record.identity] for record in finished]
    try:
        await finish(finished, [delivery for item in items for delivery in item.deliveries], ports)
    except (RetryableError, ConflictError):
        await release(items, ports)
        return BatchReport(unknown=_count(items))
    handled = sum(record.identity in done.handled for record in finished)
    idle = sum(not (record.is_pending or record.issued or record.identity in done.handled) for record in finished)
    return BatchReport(handled=handled, known=_count(items) - handled, idle=idle)


async def _drop(dropped: Sequence[Record], of: Mapping[Identity, PendingMessage], ports: Ports) -> BatchReport:
    if not dropped:
        return BatchReport()
    items = [of[record.identity] for record in dropped]
    try:
        await drop(dropped, [delivery for item in items for delivery in item.deliveries], ports)
    except (RetryableError, ConflictError):
        await release(items, ports)
        return BatchReport(unknown=_count(items))
    return BatchReport(known=_count(items), dropped=len(items))


async def _retry_or_give_up(failed: Sequence[tuple[PendingMessage, Failure]], ports: Ports) -> BatchReport:
    decided = [(item, failure, _decide(item, failure, ports)) for item, failure in failed]
    again = [(item, verdict) for item, failure, verdict in decided if not verdict.give_up and failure.kind not in UNCOUNTED]
    report = await retry(again, ports)
    put_off = [(item, verdict) for item, failure, verdict in decided if not verdict.give_up and failure.kind in UNCOUNTED]
    report += await retry(put_off, ports, uncopied=partial(_put_back, ports=ports))
    return report + await give_up(
        [_final(item, failure, verdict, ports) for item, failure, verdict in decided if verdict.give_up], ports
    )


async def _undecidable(undecidable: Sequence[tuple[PendingMessage, Undecidable]], ports: Ports) -> BatchReport:
    """Have those wait whose bucket can be rotated; the others are dead letters, for a person to decide."""
    waiting = [item for item, reason in undecidable if reason is Undecidable.SLOT_NOT_READY]
    later = Failure(kind=FailureKind.LATER, reason=Undecidable.SLOT_NOT_READY.value, delay=ROTATION_SECONDS)
    decided = [(item, _decide(item, later, ports)) for item in waiting]
    report = await retry(decided, ports, uncopied=partial(_put_back, ports=ports))
    finals = [
        (item, Failure(kind=FailureKind.REJECTED, reason=reason.value))
        for item, reason in undecidable
        if reason is not Undecidable.SLOT_NOT_READY
    ]
    report += await give_up([_final(item, failure, _uncounted(item), ports) for item, failure in finals], ports)
    return report + BatchReport(slot_not_ready=_count(waiting))


def _decide(item: PendingMessage, failure: Failure, ports: Ports) -> RetryDecision:
    return ports.handlers.verdict(item.message, failure, attempts=item.attempts, history=item.history)


def _uncounted(item: PendingMessage) -> RetryDecision:
    return RetryDecision(give_up=False, due=0, attempts=item.attempts, history=item.history)


def _refusal(record: Record) -> Failure:
    sends = sorted({f"{effect.message.type} to {effect.to or 'its subscribers'}" for effect in record.effects})
    return Failure(kind=FailureKind.REFUSED, reason=f"handled, but the broker rejected its messages: {', '.join(sends[:3])}")


def _away(peer: str) -> Failure:
    return Failure(kind=FailureKind.LOCKED, reason=f"{AWAY}: {peer}")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _failure(error: HandlerFailed | CommitRefused) -> Failure:
    if isinstance(error, HandlerFailed):
        return error.failure
    kind = FailureKind.REJECTED if isinstance(error, PermanentFailure) else FailureKind.COMMIT  # hopeless: no retry mends it
    return Failure(kind=kind, reason=str(error))


def _copy(item: PendingMessage, verdict: RetryDecision, ports: Ports, *, alone: bool, held: bool) -> Send:
    return Send(
        message=item.message,
        to=ports.endpoint,
        due=verdict.due,
        attempts=verdict.attempts,
        history=verdict.history,
        alone=alone or item.alone,
        held=item.held + held,
    )


def _final(item: PendingMessage, failure: Failure, verdict: RetryDecision, ports: Ports) -> DeadLetterDraft:
    first = item.deliveries[0]
    letter = DeadLetter(
        endpoint=ports.endpoint,
        reason=failure.reason,
        headers=first.headers,
        body=first.body,
        message=item.message,
        attempts=verdict.attempts,
        history=verdict.history,
        finish_only=failure.kind is FailureKind.REFUSED,
    )
    return DeadLetterDraft(letter, item.deliveries, None if letter.finish_only else item.message)  # that one is committed


def _mismatch(item: PendingMessage, delivery: Delivery, ports: Ports) -> DeadLetterDraft:
    return letter_for(delivery, item.message, OTHER_BODY, ports)


async def _ack(deliveries: Sequence[Delivery], ports: Ports) -> None:
    with suppress(RetryableError):  # it comes again, and everything it asks for is done already
        await ports.transport.ack(deliveries)


async def _release(deliveries: Sequence[Delivery], ports: Ports) -> None:
    if deliveries:
        with suppress(RetryableError):  # its lease ends by itself
            await ports.transport.release(deliveries)


def _count(items: Iterable[PendingMessage]) -> int:
    return sum(len(item.deliveries) for item in items)
