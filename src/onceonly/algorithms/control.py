"""The control message: finds out how a transaction ended whose process may be dead, without a search of the store.

    announce  before the commit: a delayed message to the own queue, which says where the record and the key will be
    look      the client's key first, then the record
                a record with effects  committed, not dispatched: dispatch, forget, ack
                another record         dispatched, or the tombstone: ack
                no record, but a key   committed and forgotten, or another attempt was: ack
                neither                not yet: a copy, with a longer delay, ack
    bury      neither at the last look: the tombstone, which no commit of this attempt survives; then ack

The order is the promise. Announced after the commit, a crash between the two leaves a record that is never found. The
record read first: it is not there yet, then it is committed, and the key that is read next speaks of a transaction whose
messages that are not sent. The tombstone is the attempt's and not the key's: the client may try again. It is inserted, never
written over a record that came meanwhile; where that is not certain, the message comes again and looks again.
"""

from collections.abc import Sequence
from enum import Enum

import msgspec
from msgspec.structs import replace

from onceonly.algorithms.relay import relay
from onceonly.formats.cloudevents import PREFIXES, take_apart
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer
from onceonly.model.transaction import Control, TransactionAttempt
from onceonly.ports.bundle import FinishingPorts
from onceonly.ports.transactions import Controls
from onceonly.ports.transport import Transport

CONTROL = "onceonly.control"
"""The type of control messages. No user's message may have it."""
_HEADERS = frozenset((prefix + "type", CONTROL) for prefix in PREFIXES)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Control).decode


class ControlOutcome(Enum):
    """What becomes of a control message."""

    OVER = "over"
    """Nothing is left to see to: ack."""
    AGAIN = "again"
    """A later copy was taken: ack."""
    UNKNOWN = "unknown"
    """Release: it comes again, and looks again."""


async def announce(opening: TransactionAttempt, unit: str, controls: Controls, transport: Transport) -> None:
    """Send the control message of an attempt that is about to be committed.

    Raises CommitFailed: then nothing may be committed.
    """
    control = Control(endpoint=opening.endpoint, attempt=opening.attempt, key=opening.key, unit=unit)
    try:
        (answer,) = await transport.send([send_of(control, controls)])
    except OutcomeUnknown as error:  # one that was taken all the same finds nothing, at the end
        raise CommitFailed(f"nothing was committed: the broker may not have stored the control message: {error}") from error
    if answer is not Answer.TAKEN:
        raise CommitFailed(
            f"nothing was committed: the broker did not store the control message ({answer.value}). Check that endpoint "
            f"{controls.to!r} has a queue"
        )


async def check_transaction(control: Control, controls: Controls, ports: FinishingPorts) -> ControlOutcome:
    """See to one attempt. Raises ConflictError, CommitFailed, OutcomeUnknown: then it is to be released."""
    entry = await controls.attempts.entry(control.key, control.endpoint) if control.key else None
    record = await controls.attempts.record(control.identity, control.unit)
    if record is not None and record.effects:
        relayed = await relay([record], ports)
        if relayed.refused:  # until a person has seen to it that the broker takes it
            return await _check_later(control, len(controls.delays), controls, ports)
        return ControlOutcome.OVER if relayed.finished else ControlOutcome.UNKNOWN
    if record is not None or entry is not None:
        return ControlOutcome.OVER
    if control.look < len(controls.delays):
        return await _check_later(control, control.look + 1, controls, ports)
    await controls.attempts.bury(control.identity, control.unit)
    return ControlOutcome.OVER


def send_of(control: Control, controls: Controls) -> Send:
    """Return the message for one look, with the instant before which it is not delivered."""
    name = f"{control.attempt}.{control.look}"
    message = Message(id=name, source=control.endpoint, type=CONTROL, body=_encode(control))
    delay = controls.delays[min(control.look, len(controls.delays)) - 1]
    return Send(message=message, to=controls.to, due=controls.clock.now() + delay)


def split_controls(deliveries: Sequence[Delivery]) -> tuple[tuple[Delivery, ...], tuple[Delivery, ...]]:
    """Tell control messages from users'."""
    theirs = tuple(delivery for delivery in deliveries if _HEADERS.isdisjoint(delivery.headers))
    ours = tuple(delivery for delivery in deliveries if not _HEADERS.isdisjoint(delivery.headers))
    return ours, theirs


def control_of(delivery: Delivery) -> Control:
    """Read a control message. Raises ValueError."""
    try:
        return _decode(take_apart(delivery.headers, delivery.body).body)
    except RecursionError as error:
        raise ValueError(str(error)) from error


async def _check_later(control: Control, number: int, controls: Controls, ports: FinishingPorts) -> ControlOutcome:
    (answer,) = await ports.transport.send([send_of(replace(control, look=number), controls)])
    # Crash here, "after-dispatch": 1 the copy is taken, 2 not acked, 3 both come, 4 each finds out the same.
    return ControlOutcome.AGAIN if answer is Answer.TAKEN else ControlOutcome.UNKNOWN
