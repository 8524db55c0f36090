"""What a SQL store keeps of a message, and for how long: so whose word it is that a copy was handled before."""

from enum import Enum


class Keeping(Enum):
    """How a store knows a message again. In each mode records wait until their effects are dispatched, but in NOTHING."""

    HISTORY = "history"
    """Claims stay: the store itself knows what is done (protocols, section 3)."""
    UNTIL_FORGOTTEN = "until forgotten"
    """Claims go with their records: an admission elsewhere knows what is done (sections 4 and 5)."""
    TOKENS = "tokens"
    """No claims: a message is new while its token, in the same database, is live (section 5, last part)."""
    NOTHING = "nothing"
    """Neither claims nor records: honest at-least-once, for control runs."""

    @property
    def claims(self) -> bool:
        """Tell whether `begin` claims."""
        return self in (Keeping.HISTORY, Keeping.UNTIL_FORGOTTEN)
