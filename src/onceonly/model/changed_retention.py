"""What operators see of the retention of an endpoint: what is stored, and what a change comes to."""

from datetime import timedelta

from msgspec import Struct

from onceonly.model.errors import SetupError
from onceonly.model.wording import FOREVER, FOREVER_MS, in_words


class KnownRetention(Struct, frozen=True, kw_only=True):
    """For how many milliseconds an endpoint's claims are kept. Instants are in milliseconds since 1970.

    `kept` holds for messages that are sent now. After a change, `next` holds for messages that are sent from `since` on; both
    are 0 otherwise. `known_since` is the horizon of documents: what was sent before may be forgotten. It is 0 in SQL databases,
    where the label of each time bucket decides.
    """

    kept: int
    next: int = 0
    since: int = 0
    known_since: int = 0

    @property
    def latest(self) -> int:
        """What was set last."""
        return self.next or self.kept


def as_duration(milliseconds: int) -> timedelta:
    """Return a duration that is stored in milliseconds."""
    return FOREVER if milliseconds >= FOREVER_MS else timedelta(milliseconds=milliseconds)


def refuse_less(endpoint: str, asked: int, stored: int) -> None:
    """Refuse a stored retention that is shorter than an endpoint's code asks for. Raises SetupError, with both."""
    if asked > stored:
        wanted, kept = in_words(as_duration(asked)), in_words(as_duration(stored))
        raise SetupError(
            f"retention is {wanted}, but the claims of endpoint {endpoint!r} are kept for {kept}. Run "
            f"`onceonly retention set module:endpoint {wanted.replace(' ', '')}`, or set retention to at most {kept}"
        )
