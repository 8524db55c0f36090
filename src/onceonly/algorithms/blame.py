"""Blame: which message of a unit a failure belongs to. The others of the unit are handled all the same.

A message's own failure runs the unit once more, isolated; then by halves. A message whose unit fails for a reason that may not
be its own runs again in a unit of one, behind the others. What no message caused is returned uncounted.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.intake import PendingMessage
from onceonly.algorithms.outbox import UnitResult, process
from onceonly.algorithms.remote_call import awaited_peer
from onceonly.model.errors import (
    CommitRefused,
    ConflictError,
    HandlerAbandoned,
    HandlerFailed,
    LockTimeout,
    PeerAway,
    PermanentFailure,
    RetryableError,
    StoreUnavailable,
    UpgradeRequired,
    VersionConflict,
    error_text,
)
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Unreadable
from onceonly.model.record import Decision
from onceonly.model.remote import Response
from onceonly.model.retry import AWAY, BLAMED, RetryDecision
from onceonly.ports.bundle import Ports
from onceonly.ports.handlers import Handlers
from onceonly.ports.store import Resources

_RETRIED_ALONE = frozenset({FailureKind.UNKNOWN, FailureKind.ALONE})
"""Failures of a message in a unit of several after which it runs in a unit of one."""


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


class GivenUp:
    """Handlers of a message that is given up: its handler never runs again, and the decision about it is final."""

    def __init__(self, handlers: Handlers, decision: RetryDecision, failure: Failure) -> None:
        self._handlers = handlers
        self._decision = decision
        self._failure = failure

    def read(self, delivery: Delivery) -> Message | Unreadable:
        return self._handlers.read(delivery)

    def batches(self, messages: Sequence[Message]) -> Sequence[Sequence[Message]]:
        """Put each message into a batch of its own."""
        return [(message,) for message in messages]

    def runs_alone(self, message: Message) -> bool:
        return False

    def needs_response(self, message: Message) -> bool:
        return False

    async def handle(
        self, message: Message, resources: Resources, attempt: str = "", response: Response | None = None
    ) -> Decision:
        raise HandlerFailed(self._failure)

    async def handle_batch(self, *_: object) -> Sequence[Decision]:
        raise HandlerFailed(self._failure)

    def decide_retry(self, message: Message, failure: Failure, *, attempts: int, history: tuple[Failure, ...]) -> RetryDecision:
        return self._decision


async def run(items: Sequence[PendingMessage], ports: Ports, *, isolated: bool = False) -> RunResult:
    """Run items as one unit, and find those to blame when it fails: any number of bad handlers costs one extra pass.

    An isolated unit needs no extra pass for bad handlers.

    Those whose units failed before, perhaps because of them, run behind the others, each in a unit of its own. So do those
    whose handlers need a database transaction for themselves.
    """
    runs_alone = ports.handlers.runs_alone
    alone = [item for item in items if item.blamed or runs_alone(item.message)] if len(items) > 1 else []
    if not alone:
        return await _run(items, ports, isolated=isolated and len(items) > 1)
    others = [item for item in items if item not in alone]
    return await _run_each_alone(alone, await run(others, ports, isolated=isolated) if others else RunResult(), ports)


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
        again = [identity for identity, failure in processed.failed if failure.kind in _RETRIED_ALONE]
        failed = tuple(each for each in processed.failed if each[0] not in again)
        ran = RunResult(processed=(replace(processed, failed=failed),))
        return await _run_each_alone([item for item in items if item.message.identity in again], ran, ports)
    if lost is not None:  # not inside `except`: tracebacks of the other messages would begin with this error
        return await _find_cause(items, lost, ports, isolated=isolated, seen=seen)
    if any(ports.handlers.runs_alone(item.message) for item in items):  # one has just shown that it must
        return await run(items, ports, isolated=isolated)
    if not isolated:
        return await _run(items, ports, isolated=True)
    half = len(items) // 2  # what only COMMIT shows has no name on it
    return await _run(items[:half], ports, isolated=True) + await _run(items[half:], ports, isolated=True)


async def _run_each_alone(items: Sequence[PendingMessage], ran: RunResult, ports: Ports) -> RunResult:
    """Run each of these in a unit of its own, after what `ran`; not when that shows an outage."""
    for item in items:
        if ran.unknown:
            return ran + RunResult(unknown=tuple(items[items.index(item) :]))
        ran += await _run((item,), ports, seen=any(part.handled for part in ran.processed))
    return ran


async def _find_cause(  # noqa: PLR0911 - one for each kind of failure
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
        return _unattributed(items, error)
    if len(items) == 1:
        return await _retry_without_handler(suspect, error, ports, seen=seen)
    others = [item for item in items if item is not suspect]
    if isinstance(error, HandlerAbandoned):
        return _abandoned(suspect, error) + await _run(others, ports, isolated=isolated)
    if isinstance(error, LockTimeout):  # the time-out ended the unit
        return _unattributed(others, error) + _locked(suspect, error)
    # a lost race: the others are released, and the next batch is half as large
    ran = _unattributed(others, error) if isinstance(error, ConflictError) else await _run(others, ports, isolated=True)
    return _unattributed([suspect], error) + ran if ran.unknown else await _run_each_alone([suspect], ran, ports)


async def _retry_without_handler(
    item: PendingMessage, error: ConflictError | RetryableError, ports: Ports, *, seen: bool
) -> RunResult:
    """Doubt a message whose unit of one failed, if the same unit without its handler is committed now.

    That commit also waits for an earlier attempt, so what it finds new was not committed. A store that cannot write for now may
    still commit a claim: only another handled unit shows that it can.
    """
    if isinstance(error, LockTimeout):
        return _locked(item, error)
    if isinstance(error, HandlerAbandoned):
        return _abandoned(item, error)
    if ports.store.unit_key(item.message) or (isinstance(error, StoreUnavailable) and not seen):
        return _unattributed([item], error)
    try:
        is_its_own = await _is_committed_without(item.message, ports)
    except (ConflictError, RetryableError):
        is_its_own = False
    if not is_its_own:
        return _unattributed([item], error)
    unknown = Failure(kind=FailureKind.UNKNOWN, reason=f"{BLAMED}: {error_text(error)}")
    return RunResult(processed=(UnitResult(failed=((item.message.identity, unknown),)),))


def _abandoned(item: PendingMessage, error: HandlerAbandoned) -> RunResult:
    """Count a failure of the handler itself, which took its unit with it."""
    return RunResult(processed=(UnitResult(failed=((item.message.identity, error.failure),)),))


async def _without_peer(error: PeerAway, items: Sequence[PendingMessage], ports: Ports, *, isolated: bool) -> RunResult:
    """Put off, uncounted, all messages that need the peer that is away. The others do not wait for it."""
    waiting = {item.message.identity for item in items if error.peer and awaited_peer(item.message) == error.peer}
    held = [item for item in items if item.message.identity in error.needed_by | waiting]
    if not held:
        return _unattributed(items, error)
    away = peer_away(error.peer, error.delay)
    ran = RunResult(processed=(UnitResult(failed=tuple((item.message.identity, away) for item in held)),))
    others = [item for item in items if item not in held]
    return ran + await _run(others, ports, isolated=isolated) if others else ran


def _locked(item: PendingMessage, error: LockTimeout) -> RunResult:
    locked = Failure(kind=FailureKind.LOCKED, reason=error_text(error))
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


def _unattributed(items: Sequence[PendingMessage], error: ConflictError | RetryableError) -> RunResult:
    trouble, them = (error_text(error),), tuple(items)
    if isinstance(error, ConflictError):
        return RunResult(conflicted=them, lost_race=them if isinstance(error, VersionConflict) else (), trouble=trouble)
    return RunResult(unknown=them, needs_upgrade=them if isinstance(error, UpgradeRequired) else (), trouble=trouble)


def _failure(error: HandlerFailed | CommitRefused) -> Failure:
    if isinstance(error, HandlerFailed):
        return error.failure
    kind = FailureKind.REJECTED if isinstance(error, PermanentFailure) else FailureKind.COMMIT  # hopeless: no retry mends it
    return Failure(kind=kind, reason=str(error))


def peer_away(peer: str, delay: float = 0.0) -> Failure:
    """Return why a message waits for a peer: for `delay` seconds if the peer has named them."""
    kind = FailureKind.LATER if delay else FailureKind.LOCKED
    return Failure(kind=kind, reason=f"{AWAY}: {peer}", delay=delay)
