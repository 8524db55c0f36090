"""The algorithm: what makes a message's effects happen once. This page is the whole idea.

    begin     claim the messages; learn which are new, pending (handled, effects still to dispatch) or done
    handle    run the handlers of the new ones; nothing is visible yet
    commit    business state + claims + records, in one atomic step
    dispatch  make the effects of new and pending records happen: same ids, same bodies, every time
    finish    retire, forget the records, then acknowledge

Crash before commit: nothing happened; the message comes again and is new. Crash after commit: it comes again, is pending, and
only its effects are dispatched. Crash after forget: it comes again, is done, and is only acknowledged. A copy, wherever it
is, changes nothing. No write is retried in place: after any failure the message starts again from `begin`.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.remote_call import delete_call, response_in
from onceonly.model.errors import BudgetExceeded, ConflictError, HandlerFailed, RetryableError
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, Message
from onceonly.model.record import Answer, Decision, Record, together
from onceonly.ports.bundle import FinishingPorts, Ports
from onceonly.ports.effects import Responses
from onceonly.ports.store import UndecidableMessage, Unit


class UnitResult(Struct, frozen=True, kw_only=True):
    """What became of the messages of one unit; each is in exactly one of the first eight."""

    finished: tuple[Record, ...] = ()
    """Nothing is left to do but `finish`: every effect was taken, now or before."""
    undispatched: tuple[tuple[Record, Answer], ...] = ()
    """Handled, but an effect was REFUSED, is UNKNOWN or AWAY: the record stays, and the message must come again."""
    dropped: tuple[Record, ...] = ()
    """Not admitted, and the unit had nothing of it: it is done elsewhere, and only to be dropped."""
    postponed: tuple[Identity, ...] = ()
    """Left out of the unit: the batch had used its time."""
    failed: tuple[tuple[Identity, Failure], ...] = ()
    """The handler failed and its work was undone."""
    mismatched: tuple[Identity, ...] = ()
    """This identity was handled with another body."""
    mismatched_elsewhere: tuple[Identity, ...] = ()
    """The same, as admission knows: an earlier attempt at this body may still be under way."""
    undecidable: tuple[UndecidableMessage, ...] = ()
    """The store does not know whether it was handled: what was known of its time is forgotten, or cannot be kept yet."""
    handled: frozenset[Identity] = frozenset()
    """Those whose handler ran in this very unit and was committed."""


async def process(messages: Sequence[Message], ports: Ports, *, isolated: bool = False) -> UnitResult:
    """Take these messages (distinct identities) through one unit of work, up to and including dispatch.

    In an isolated unit the messages whose handler fails are left out; otherwise the first failure ends the unit. Raises
    HandlerFailed, ConflictError, CommitRefused, CommitFailed, OutcomeUnknown: nothing is finished then, and whatever was
    committed is found again as pending.
    """
    attempts = await ports.effects.register(messages)
    unit = await ports.store.begin(messages, isolated=isolated)  # fences everything below
    responses: Responses = {}
    if asking := [message for message in unit.found.new if ports.handlers.needs_response(message)]:
        unit.abandon()  # no lock is held while another service is asked
        responses = await ports.effects.responses(asking)
        unit = await ports.store.begin(messages, isolated=isolated)
    records: tuple[Record, ...] = ()
    try:
        known = _known(unit, messages, attempts)
        to_admit = [message for message in messages if message not in unit.found.mismatched]
        admission = await ports.admission.admits(to_admit)  # only now: an earlier answer may be stale
        refused = admission.mismatched.union(each.message.identity for each in admission.undecidable)
        committed = refused.intersection(record.identity for record in known)  # they are sent
        admitted = admission.messages | committed
        attempted = await _handle(unit, admitted, attempts, ports, responses=responses, isolated=isolated)
        records = await ports.admission.prepare(attempted.records)
        await ports.effects.create(records)
        if records:
            await _commit(unit, records)
        else:
            unit.abandon()
    except ConflictError:
        unit.abandon()
        await ports.admission.discard(records)  # definite: nothing of this attempt happened
        await ports.effects.discard(records)
        raise
    except BaseException:
        unit.abandon()  # and never compensate: after OutcomeUnknown the commit may have happened
        raise
    # Crash here, "after-commit": 1 committed, 2 nothing sent, 3 the lease ends, 4 the claim answers "pending", 5 it is sent.
    pending = (*records, *(record for record in known if record.identity in admitted))
    await ports.admission.activate(pending)
    answers = await dispatch(pending, ports)
    # Crash here, "after-dispatch": 1 sent, 2 the record is there, 3 the same ids are sent again, 4 receivers know them.
    settled = (*records, *known)
    return UnitResult(
        finished=tuple(r for r in settled if answers.get(r.identity, Answer.TAKEN) is Answer.TAKEN),
        undispatched=tuple(
            (r, answers[r.identity]) for r in settled if answers.get(r.identity, Answer.TAKEN) is not Answer.TAKEN
        ),
        dropped=tuple(
            Record(m.identity, unit=unit.key, attempt=attempts.get(m.identity, ""))
            for m in unit.found.new
            if m.identity not in admission.messages | refused
        ),
        postponed=attempted.postponed,
        failed=attempted.failed,
        mismatched=tuple(message.identity for message in unit.found.mismatched),
        mismatched_elsewhere=tuple(message.identity for message in unit.found.new if message.identity in admission.mismatched),
        undecidable=(
            *unit.found.undecidable,
            *(each for each in admission.undecidable if each.message.identity not in committed),
        ),
        handled=frozenset(record.identity for record in records),
    )


async def finish(finished: Sequence[Record], deliveries: Sequence[Delivery], ports: Ports) -> None:
    """Settle messages that are completely dispatched; may cover several units. The order is the promise: ack comes last."""
    await ports.effects.clean(finished)
    await ports.admission.retire(finished)
    # Crash here, "after-retire": 1 done elsewhere, 2 the record is there, 3 it comes again, 4 not admitted: it is forgotten.
    await _forget_and_ack(finished, deliveries, ports)


async def drop(dropped: Sequence[Record], deliveries: Sequence[Delivery], ports: Ports) -> None:
    """Settle messages that were not admitted and of which the unit had nothing: they are done elsewhere.

    Their process may have committed after this unit was loaded, and died before it forgot. Then no other process will.
    """
    await ports.effects.clean(dropped)
    await _forget_and_ack(dropped, deliveries, ports)


async def _forget_and_ack(records: Sequence[Record], deliveries: Sequence[Delivery], ports: Ports) -> None:
    left = [record for record in records if ports.store.keeps(record)]
    if left:
        await ports.store.forget(left)
    # Crash here, "after-forget": 1 no record, 2 no ack, 3 it comes again, 4 the claim answers "done", 5 it is acked.
    await ports.transport.ack(deliveries)


async def dispatch(records: Sequence[Record], ports: FinishingPorts) -> dict[Identity, Answer]:
    """Make these records' effects happen; answers for each record: TAKEN only when every effect of it was."""
    called = await ports.effects.call(records)  # a message that announces a response is sent only when there is one
    ready = [record for record in records if called.get(record.identity, Answer.TAKEN) is Answer.TAKEN]
    sends = [effect for record in ready for effect in record.effects]
    answers = iter(await ports.transport.send(sends)) if sends else iter(())
    return {**called, **{record.identity: together([next(answers) for _ in record.effects]) for record in ready}}


def _record(message: Message, decision: Decision, unit: Unit, attempts: Mapping[Identity, str]) -> Record:
    return Record(
        message.identity,
        decision.effects,
        unit=unit.key,
        token=message.token,
        attempt=attempts.get(message.identity, ""),
        artifacts=decision.artifacts,
        requests=(*decision.requests, *delete_call(message)),
        fingerprint=message.fingerprint,
    )


def _known(unit: Unit, messages: Sequence[Message], attempts: Mapping[Identity, str]) -> tuple[Record, ...]:
    """Return the records of what was handled before, with the attempts that are for nothing."""
    bodies = {message.identity: message.fingerprint for message in messages} if unit.found.pending else {}
    pending = (replace(record, fingerprint=bodies[record.identity]) for record in unit.found.pending)
    done = (Record(m.identity, unit=unit.key, token=m.token, fingerprint=m.fingerprint) for m in unit.found.done)
    known = (*pending, *done)
    return tuple(replace(record, attempt=attempts[record.identity]) for record in known) if attempts else known


class _Attempted(Struct, frozen=True):
    records: tuple[Record, ...]
    failed: tuple[tuple[Identity, Failure], ...]
    postponed: tuple[Identity, ...]


async def _handle(
    unit: Unit,
    admitted: frozenset[Identity],
    attempts: Mapping[Identity, str],
    ports: Ports,
    *,
    responses: Responses,
    isolated: bool,
) -> _Attempted:
    """Run the handlers, one after another on the unit's resources. A handler that takes batches runs once for each batch."""
    waiting = [*ports.handlers.batches([message for message in unit.found.new if message.identity in admitted])]
    records: list[Record] = []
    failed: list[tuple[Identity, Failure]] = []
    while waiting:
        batch = waiting.pop(0)
        try:
            decisions = await _decide(batch, unit, attempts, ports, responses=responses)
        except BudgetExceeded:
            waiting.insert(0, batch)
            break
        except HandlerFailed as error:
            if not isolated:
                raise
            blamed = _blamed(batch, error)
            failed.extend(blamed.items())
            waiting[:0] = _rerun_batches(batch, blamed)
        except (ConflictError, RetryableError) as error:
            error.during = batch[0].identity if len(batch) == 1 else None
            raise
        else:
            records.extend(_record(each, made, unit, attempts) for each, made in zip(batch, decisions, strict=True))
    postponed = tuple(message.identity for batch in waiting for message in batch)
    return _Attempted(tuple(records), tuple(failed), postponed)


async def _decide(
    batch: Sequence[Message], unit: Unit, attempts: Mapping[Identity, str], ports: Ports, *, responses: Responses
) -> Sequence[Decision]:
    names = [attempts.get(message.identity, "") for message in batch]
    found = [response_in(responses, message) for message in batch]
    if len(batch) > 1:
        return await ports.handlers.handle_batch(batch, unit.resources, names, found)
    return [await ports.handlers.handle(batch[0], unit.resources, names[0], found[0])]


def _blamed(batch: Sequence[Message], error: HandlerFailed) -> Mapping[Identity, Failure]:
    """Return the messages of a batch that failed, as far as this is known; of one message it always is."""
    return {batch[0].identity: error.failure} if len(batch) == 1 else error.by_message


def _rerun_batches(batch: Sequence[Message], blamed: Mapping[Identity, Failure]) -> Sequence[Sequence[Message]]:
    """Return the batches in which the others run again, since all of it was undone: halves, if it is unknown which failed."""
    if not blamed:
        return batch[: len(batch) // 2], batch[len(batch) // 2 :]
    others = [message for message in batch if message.identity not in blamed]
    return [others] if others else []


async def _commit(unit: Unit, records: Sequence[Record]) -> None:
    try:
        await unit.commit(records)
    except (ConflictError, RetryableError) as error:
        error.during = records[0].identity if len(records) == 1 else None
        raise
