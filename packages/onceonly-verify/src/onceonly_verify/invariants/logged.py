"""One message of a batch, and what the ports saw of it."""

from onceonly.model.message import Delivery, Failure, Message
from onceonly.model.record import Record
from onceonly.model.retry import RetryDecision, is_blamed
from onceonly.model.ring import Undecidable


class WrongReportError(Exception):
    """What a program did or reports disagrees with its batch; the text begins with the kind of violation.

    It is not an error of the library, so no program catches it.
    """


class LoggedMessage:
    """One message of a batch: its deliveries, and what became of it so far."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.deliveries: list[Delivery] = []
        self.units = 0
        """In how many units it was."""
        self.unit_key = ""
        """The key of its last unit."""
        self.end_unit()
        self.died: int | None = None
        """The count with which its run began that died."""
        self.wait = 0.0
        self.is_started = False
        """Whether a durable record says that it runs."""
        self.must_be_isolated = False
        """Whether its next unit must be isolated: another message ended the last one."""
        self.has_run_alone = False
        self.decision: RetryDecision | None = None
        self.decided: Failure | None = None
        self.failed = False
        """Whether a decision was made about a failure of its own."""
        self.copied = self.copy_refused = self.has_fence = False

    def end_unit(self) -> None:
        """Forget what became of it in its last unit."""
        self.is_admitted = self.is_known = self.committed = self.postponed = self.refused = self.fenced = False
        self.cleaned: Record | None = None
        """Its record, once what other attempts at it made is deleted."""
        self.is_forgotten = False
        self.record: Record | None = None
        self.cause: Exception | None = None
        """What ended its unit."""
        self.failure: Failure | None = None
        self.away: str | None = None
        """The peers that it needs, if one did not answer."""
        self.undecidable: Undecidable | None = None

    @property
    def waits_for_bucket(self) -> bool:
        """Return whether its last unit found its time bucket not ready. An error of that unit is what counts instead."""
        return self.undecidable is Undecidable.SLOT_NOT_READY and self.cause is None

    @property
    def is_past_retention(self) -> bool:
        """Return whether its last unit could not decide, and never can. This outweighs what was decided before that unit."""
        return self.undecidable not in {None, Undecidable.SLOT_NOT_READY}

    @property
    def first(self) -> Delivery:
        """Return the copy that knows most of its failures."""
        return max(self.deliveries, key=lambda delivery: delivery.attempts)

    @property
    def alone(self) -> bool:
        return any(delivery.alone for delivery in self.deliveries)

    @property
    def held(self) -> int:
        """Return how often it was only held."""
        return max(delivery.held for delivery in self.deliveries)

    @property
    def suspect(self) -> bool:
        """Return whether it came again although nothing released it."""
        return not self.alone and any(delivery.suspect for delivery in self.deliveries)

    @property
    def blamed(self) -> bool:
        """Return whether it runs in a unit of one, behind the others."""
        return any(is_blamed(delivery.history) for delivery in self.deliveries)
