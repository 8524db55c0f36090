"""The relay: finishes what was committed when the process that committed it did not.

    find      the committed records: those a commit in this process announced, and those that wait for too long
    dispatch  send their effects: same ids, same bodies, every time
    finish    retire, then forget the records whose every effect was taken

A record is found by what it is, committed and still there, never by "newer than the last one seen". Crash before commit: there
is no record. Crash after commit, or after dispatch: the record is there, any relay finds it, and its receivers know the ids.
Crash after forget: nothing is left to do. Two relays at once, or a relay and a worker, send the same message twice, and nothing
else. No write is retried in place: after any failure the record is found again.
"""

from collections.abc import Sequence

from msgspec import Struct

from onceonly.algorithms.outbox import dispatch
from onceonly.model.record import Answer, Record
from onceonly.ports.bundle import FinishingPorts


class RelayResult(Struct, frozen=True, kw_only=True):
    """What became of some records; each is in exactly one of them."""

    finished: tuple[Record, ...] = ()
    """Every effect was taken, and the record is gone."""
    refused: tuple[Record, ...] = ()
    """An effect was REFUSED: the record stays until a person has seen to it that the broker takes it."""
    unknown: tuple[Record, ...] = ()
    """An effect is UNKNOWN: the record stays."""
    away: tuple[Record, ...] = ()
    """A service that must be asked is AWAY: the record stays."""


async def relay(records: Sequence[Record], ports: FinishingPorts) -> RelayResult:
    """Dispatch committed records, and forget those that are finished. The order is the promise: forget comes last.

    A record may be a transaction's or a handler's; a handler's claim stays, so its message is only acknowledged when it comes
    again. Raises CommitFailed, OutcomeUnknown: whatever is not forgotten is found again.
    """
    # Crash here, "after-commit": 1 committed, 2 nothing sent, 3 the record is older than `relay_after`, 4 a relay sends it.
    await ports.admission.activate(records)
    answers = await dispatch(records, ports)
    # Crash here, "after-dispatch": 1 sent, 2 the record is there, 3 a relay sends the same ids again, 4 receivers know them.
    finished = tuple(record for record in records if answers[record.identity] is Answer.TAKEN)
    if finished:
        await ports.effects.clean(finished)
        await ports.admission.retire(finished)
        await ports.store.forget(finished)
    return RelayResult(
        finished=finished,
        refused=tuple(record for record in records if answers[record.identity] is Answer.REFUSED),
        unknown=tuple(record for record in records if answers[record.identity] is Answer.UNKNOWN),
        away=tuple(record for record in records if answers[record.identity] is Answer.AWAY),
    )
