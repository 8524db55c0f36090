"""What becomes of a control message must agree with what a look at its attempt found."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from onceonly.algorithms.control import CONTROL
from onceonly.formats.cloudevents import take_apart
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitRefused
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer, Record, together
from onceonly.model.transaction import Control, IdempotencyEntry, TransactionAttempt
from onceonly.ports.bundle import Ports
from onceonly.ports.transactions import Controls
from onceonly_verify.invariants.batch_log import Observed
from onceonly_verify.invariants.logged import WrongReportError

_decode = msgspec.json.Decoder(Control).decode


def message_of(control: Control, controls: Controls) -> Send:
    """Return the message of a look: the look number n is `delays[n - 1]` milliseconds after the one before."""
    name = f"{control.attempt}.{control.look}"
    message = Message(id=name, source=control.endpoint, type=CONTROL, body=msgspec.json.encode(control))
    return Send(message=message, to=controls.to, due=controls.clock.now() + controls.delays[control.look - 1])


class Announcement:
    """The transport of one transaction. It takes the message of the first look at its attempt, and nothing else."""

    def __init__(self, transport: Any, opening: TransactionAttempt, controls: Controls, unit: Callable[[], str]) -> None:
        """Watch this transport; `unit` returns where the record of the attempt will be."""
        self._transport, self._opening, self._controls, self._unit = transport, opening, controls, unit

    async def send(self, sends: Sequence[Send]) -> Any:
        """Send it; see the port. Raises WrongReportError."""
        opening = self._opening
        control = Control(endpoint=opening.endpoint, attempt=opening.attempt, key=opening.key, unit=self._unit())
        wanted = message_of(control, self._controls)
        if list(sends) != [wanted]:
            raise WrongReportError(f"wrong look: attempt {opening.attempt} is announced by {sends}, and not by {wanted}")
        return await self._transport.send(sends)


class _AttemptCheck:
    """One control message, and what its look found and did so far."""

    def __init__(self, delivery: Delivery, controls: Controls) -> None:
        self.control: Control | None = None
        self.is_keyed = self.is_read = self.is_forgotten = self.is_buried = self.is_given_up = self.has_failed = False
        """Whether its key and its record were read, and what happened after that."""
        self.is_hopeless = False
        """Whether it cannot be decoded, or leads to what cannot be read."""
        self.entry: IdempotencyEntry | None = None
        self.record: Record | None = None
        self.sent: Answer | None = None
        self.copied: Answer | None = None
        self._last = len(controls.delays)
        try:
            self.control = _decode(take_apart(delivery.headers, delivery.body).body)
        except ValueError:
            self.is_hopeless = True

    @property
    def has_ended(self) -> bool:
        """Return whether the look has shown how the attempt ended."""
        return self.record is not None or self.entry is not None

    def next(self) -> int:
        """Return the number of the look that must follow; 0 for none."""
        if self.control is None or not self.is_read:
            return 0
        if self.record is not None and self.record.effects:
            return self._last if self.sent is Answer.REFUSED else 0
        return 0 if self.has_ended or self.control.look >= self._last else self.control.look + 1

    def missing(self) -> str:
        """Return what must be done before the message is acked; empty if nothing is left."""
        if self.control is None or self.is_given_up:
            return "" if self.is_given_up else "no dead letter contains it"
        if not self.is_read or (self.control.key and not self.is_keyed):
            return f"its {'key' if self.is_read else 'record'} was not read"
        if self.next():
            return "" if self.copied is Answer.TAKEN else "no copy of it was taken"
        if self.record is not None and self.record.effects:
            return "" if self.sent is Answer.TAKEN and self.is_forgotten else "its attempt is not finished"
        return "" if self.has_ended or self.is_buried else "its attempt may still be committed"


class LookLog:
    """Notes the calls of the delivery shell with the control messages of a batch. They are looked at one after another.

    A call that contradicts what was found raises WrongReportError.
    """

    def __init__(self, batch: Sequence[Delivery], ports: Ports, controls: Controls) -> None:
        mine = [each for each in batch if take_apart(each.headers, each.body).attributes.get("type") == CONTROL]
        self._left = {each.receipt: _AttemptCheck(each, controls) for each in mine}
        self._controls = controls

        def observed(port: Any, *names: str) -> Any:
            return Observed(port, self._call, {name: name for name in names})

        self.ports = ports._replace(
            store=observed(ports.store, "forget"),
            admission=observed(ports.admission, "activate", "retire"),
            effects=observed(ports.effects, "clean", "call"),
            transport=observed(ports.transport, "send", "ack", "release"),
            dead_letters=observed(ports.dead_letters, "add"),
            controls=controls._replace(attempts=observed(controls.attempts, "entry", "record", "bury")),
        )

    async def _call(self, point: str, function: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
        look = next(iter(self._left.values()), None)
        if look is None:
            return await function(*arguments, **options)
        before, after = getattr(self, f"_before_{point}", None), getattr(self, f"_after_{point}", None)
        if before:
            before(look, *arguments)
        try:
            answer = await function(*arguments, **options)
        except Exception as error:
            look.has_failed = True
            look.is_hopeless |= isinstance(error, CommitRefused)
            raise
        if after:
            after(look, answer, *arguments)
        return answer

    def _after_entry(self, look: _AttemptCheck, entry: IdempotencyEntry | None, key: str, endpoint: str) -> None:
        if look.control and (key, endpoint) == (look.control.key, look.control.endpoint):
            look.is_keyed, look.entry = True, entry

    def _after_record(self, look: _AttemptCheck, record: Record | None, identity: Identity, unit: str) -> None:
        if look.control and (identity, unit) == (look.control.identity, look.control.unit):
            look.is_read, look.record = True, record

    def _before_send(self, look: _AttemptCheck, sends: Sequence[Send]) -> None:
        if sends[0].message.type == CONTROL:
            number = look.next()
            wanted = message_of(replace(look.control, look=number), self._controls) if look.control and number else None
            if list(sends) != [wanted]:
                raise WrongReportError(f"wrong look: a control message leads to {sends}, and not to {wanted}")

    def _after_send(self, look: _AttemptCheck, answers: Sequence[Answer], sends: Sequence[Send]) -> None:
        if sends[0].message.type == CONTROL:
            look.copied = answers[0]
        else:
            look.sent = together(answers)

    def _before_bury(self, look: _AttemptCheck, identity: Identity, unit: str) -> None:
        control = look.control
        if control is None or (identity, unit) != (control.identity, control.unit) or look.has_ended or look.next():
            raise WrongReportError(f"wrong look: attempt {identity.id} is given up, and this is not the last look at it")

    def _after_bury(self, look: _AttemptCheck, *_: Any) -> None:
        look.is_buried = True

    def _before_forget(self, _: _AttemptCheck, records: Sequence[Record]) -> None:
        if idle := [each for each in records if not each.effects]:
            raise WrongReportError(f"wrong look: what ended attempt {idle[0].identity.id} is forgotten, and nothing was sent")

    def _after_forget(self, look: _AttemptCheck, *_: Any) -> None:
        look.is_forgotten = True

    def _after_add(self, look: _AttemptCheck, _: None, letter: DeadLetter) -> None:
        if not look.is_hopeless:
            raise WrongReportError(f"wrong look: a control message is given up because {letter.reason!r}")
        look.is_given_up = True

    def _before_ack(self, _: _AttemptCheck, deliveries: Sequence[Delivery]) -> None:
        for look in self._settled(deliveries):
            if missing := look.missing():
                raise WrongReportError(f"wrong look: a control message is acked, and {missing}")

    def _before_release(self, _: _AttemptCheck, deliveries: Sequence[Delivery]) -> None:
        for look in self._settled(deliveries):
            is_doubtful = {look.sent, look.copied} & {Answer.UNKNOWN} or look.copied is Answer.REFUSED
            if not (look.has_failed or is_doubtful):
                raise WrongReportError("wrong look: a control message is released, and no call failed")

    def _settled(self, deliveries: Sequence[Delivery]) -> list[_AttemptCheck]:
        mine = [each.receipt for each in deliveries if each.receipt in self._left]
        return [self._left.pop(receipt) for receipt in mine]
