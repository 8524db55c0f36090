"""The transaction: what makes a block of the user's, outside of any handler, happen once. Protocols, section 8.

    begin     take the client's key; if it is committed, the stored answer is returned, and nothing runs
    block     the user's own work; nothing is visible yet
    announce  where no relay is relied on: a control message, so that a worker checks how this ended
    complete  business state + record + key with its answer, in one atomic step, before the deadline
    then      dispatch and forget the record (`algorithms/relay`): at once, by a relay, or by a caller that repeats the key

The key is taken first, so that a second attempt waits for the first one instead of doing its work for nothing; stores that do
not wait say ConflictError, here or at the commit. A ConflictError is no answer: only the key's row is, read again. There: it is
the answer of who won. Not there: it was not done, and the client may try again.

Crash before commit: nothing happened. Crash after commit: the record is found by a relay, by the control message
(`algorithms/control`), or under the repeated key. After OutcomeUnknown only the client's next attempt finds out. Without a key
it would be done twice. What comes before the commit is never OutcomeUnknown, but for the read of who won.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from msgspec import Struct

from onceonly.algorithms.control import announce
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, HandlerFailed, KeyReused, OutcomeUnknown
from onceonly.model.record import Record
from onceonly.model.transaction import BlockDecision, IdempotencyEntry, TransactionAttempt, attempt_unit
from onceonly.ports.admission import Admission
from onceonly.ports.transactions import Controls, OpenTransaction, Transactions
from onceonly.ports.transport import Transport

Block = Callable[[OpenTransaction], Awaitable[BlockDecision]]
"""The user's work: opaque, and run at most once for each attempt."""


class TransactionPorts(NamedTuple):
    """The ports that a transaction talks to."""

    transactions: Transactions
    admission: Admission
    controls: Controls | None = None
    transport: Transport | None = None
    """There where control messages are."""


class TransactionResult(Struct, frozen=True, kw_only=True):
    """How a transaction ended: its own answer, or that of the attempt that won; and the records to dispatch now."""

    answer: bytes | None = None
    records: tuple[Record, ...] = ()
    is_known: bool = False


async def transact(opening: TransactionAttempt, block: Block, ports: TransactionPorts) -> TransactionResult:
    """Run a block once for each client's key; every later attempt gets the first answer.

    Raises what the block raises, KeyReused, ConflictError (not done: try again), CommitRefused, CommitFailed, OutcomeUnknown.
    """
    opened = await begin(opening, ports)
    if isinstance(opened, IdempotencyEntry):
        return known(opened)
    try:
        async with enclosed(opened):
            decided = await block(opened)
    except ConflictError as lost:
        return known(await _winner(opening, ports, lost))
    return await complete(opening, opened, decided, ports)


async def begin(opening: TransactionAttempt, ports: TransactionPorts) -> OpenTransaction | IdempotencyEntry:
    """Open the transaction; returns the stored entry instead when its key is committed. Raises as `transact`."""
    try:
        with before_commit():
            opened = await ports.transactions.open(opening)
    except ConflictError as lost:
        return await _winner(opening, ports, lost)
    return _checked(opening, opened) if isinstance(opened, IdempotencyEntry) else opened


def known(entry: IdempotencyEntry) -> TransactionResult:
    return TransactionResult(answer=entry.answer, records=entry.records, is_known=True)


@contextmanager
def before_commit() -> Iterator[None]:
    """Enclose what is done before the commit is sent: nothing of it is ever visible, so it is CommitFailed, never unknown."""
    try:
        yield
    except OutcomeUnknown as error:
        raise CommitFailed(f"nothing was committed: {error}") from error


@asynccontextmanager
async def enclosed(opened: OpenTransaction) -> AsyncIterator[None]:
    """Enclose the block: whatever ends it but success gives the transaction up."""
    try:
        async with opened.resources.attempt():
            yield
    except HandlerFailed as error:
        opened.abandon()
        raise CommitRefused(f"the transaction cannot be committed: {error.failure.reason}") from error
    except BaseException:
        opened.abandon()
        raise


async def complete(
    opening: TransactionAttempt, opened: OpenTransaction, decided: BlockDecision, ports: TransactionPorts
) -> TransactionResult:
    """Commit what the block decided. Gives the records to dispatch now. Raises as `transact`."""
    decision = Record(opening.identity, decided.effects, unit=opened.unit or attempt_unit(opening.max_commit))
    records: tuple[Record, ...] = (decision,) if decided.effects else ()
    try:
        with before_commit():
            records = await ports.admission.prepare(records)
        if records and ports.controls and ports.transport:
            await announce(opening, decision.unit, ports.controls, ports.transport)
        # Crash here, "before-commit": 1 nothing happened, 2 the control message comes, 3 no record, no key, 4 a tombstone.
        await opened.commit(next(iter(records), None), decided.answer)
    except ConflictError as lost:
        opened.abandon()
        await ports.admission.discard(records)  # definite: nothing of this attempt happened
        return known(await _winner(opening, ports, lost))
    except BaseException:
        opened.abandon()  # and never compensate: after OutcomeUnknown the commit may have happened
        raise
    # Crash here, "after-commit": 1 committed, 2 nothing sent, 3 a relay finds it, or the control message leads to it, 4 sent.
    return TransactionResult(answer=decided.answer, records=records)


async def _winner(opening: TransactionAttempt, ports: TransactionPorts, lost: ConflictError) -> IdempotencyEntry:
    """Return what the attempt that won has committed under the key. Raises ConflictError if none was committed, KeyReused."""
    entry = await ports.transactions.entry(opening.key) if opening.key else None
    if entry is None:
        raise ConflictError(f"nothing was committed, so the call can be repeated: {lost}") from lost
    return _checked(opening, entry)


def _checked(opening: TransactionAttempt, entry: IdempotencyEntry) -> IdempotencyEntry:
    """Check that the entry was stored for this request. Every read of an entry is checked."""
    if entry.fingerprint != opening.fingerprint:
        raise KeyReused("this idempotency key was used for another request: use a new key for each new request")
    return entry
