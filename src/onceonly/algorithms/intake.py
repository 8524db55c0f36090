"""Sorting a batch: what can be read, which deliveries are copies of one message, and which messages are in its unit. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Failure, Message, Unreadable
from onceonly.model.retry import is_blamed
from onceonly.ports.bundle import Ports

OTHER_BODY = "an earlier message had the same source and id, but another body: its sender reuses ids. Correct the sender"


class PendingMessage(Struct, frozen=True):
    """One logical message of a batch with all its deliveries: they share its fate."""

    message: Message
    deliveries: tuple[Delivery, ...]

    @property
    def attempts(self) -> int:
        """How often this message failed before, as far as any of its copies knows."""
        return max(delivery.attempts for delivery in self.deliveries)

    @property
    def suspect(self) -> bool:
        """Return whether any of its deliveries came again without a release."""
        return True in [delivery.suspect for delivery in self.deliveries]

    @property
    def alone(self) -> bool:
        """Return whether it must run in a unit of one: a process died while it held this message, perhaps because of it."""
        return True in [delivery.alone for delivery in self.deliveries]

    @property
    def held(self) -> int:
        """How many processes died that held this message while another one's handler was running."""
        return max(delivery.held for delivery in self.deliveries)

    @property
    def blamed(self) -> bool:
        """Return whether it runs after the others, in a unit of its own: units with it failed, perhaps because of it."""
        return True in [is_blamed(delivery.history) for delivery in self.deliveries if delivery.history]

    @property
    def history(self) -> tuple[Failure, ...]:
        """The failures before this one, from the copy that knows most."""
        return max(self.deliveries, key=lambda delivery: delivery.attempts).history


class DeadLetterDraft(Struct, frozen=True):
    """A dead letter, and the deliveries to acknowledge once it is stored."""

    letter: DeadLetter
    deliveries: tuple[Delivery, ...]
    gives_up: Message | None = None
    """The message, if an earlier attempt may still be committed. The store is then fenced before the letter is stored."""


class Intake(Struct, frozen=True):
    """A sorted batch: deliveries to release, letters to store, suspects, units, and items that run alone now."""

    back: tuple[Delivery, ...]
    letters: tuple[DeadLetterDraft, ...]
    suspects: tuple[PendingMessage, ...]
    units: tuple[tuple[PendingMessage, ...], ...]
    alone: tuple[PendingMessage, ...]


def sort(deliveries: Sequence[Delivery], ports: Ports) -> Intake:
    """Sort a batch. One identity is one message however many deliveries it has; the first body received is the message's.

    Another body is released, for the store to judge when it comes alone: this may be the one that was handled before, and
    its effects may still be pending.
    """
    copies: dict[Identity, list[Delivery]] = {}
    messages: dict[Identity, Message] = {}
    letters: list[DeadLetterDraft] = []
    back: list[Delivery] = []
    for delivery in deliveries:
        message = ports.handlers.read(delivery)
        if isinstance(message, Unreadable):
            letters.append(letter_for(delivery, message.message, message.reason, ports))
        elif messages.setdefault(message.identity, message).fingerprint != message.fingerprint:
            back.append(delivery)
        else:
            copies.setdefault(message.identity, []).append(delivery)
    items = [PendingMessage(messages[identity], tuple(found)) for identity, found in copies.items()]
    is_calm = not [delivery for delivery in deliveries if delivery.suspect or delivery.alone]
    alone = () if is_calm else tuple(item for item in items if item.alone)
    suspects = () if is_calm else tuple(item for item in items if item.suspect and not item.alone)
    together = items if is_calm else [item for item in items if not (item.alone or item.suspect)]
    return Intake(tuple(back), tuple(letters), suspects, _by_key(together, ports), alone)


def _by_key(items: Sequence[PendingMessage], ports: Ports) -> tuple[tuple[PendingMessage, ...], ...]:
    """Put those into one unit that the store can commit together."""
    units: dict[str, list[PendingMessage]] = {}
    for item in items:
        units.setdefault(ports.store.unit_key(item.message), []).append(item)
    return tuple(tuple(unit) for unit in units.values())


def letter_for(delivery: Delivery, message: Message | None, reason: str, ports: Ports) -> DeadLetterDraft:
    """Write the dead letter of one delivery that never became an item."""
    letter = DeadLetter(
        endpoint=ports.endpoint,
        reason=reason,
        headers=delivery.headers,
        body=delivery.body,
        message=message,
        attempts=delivery.attempts,
        history=delivery.history,
    )
    return DeadLetterDraft(letter, (delivery,))
