"""What may differ between a message in a unit and a message in a transaction of its own. The programs read none of it.

`docs/reference/databases.md` has the same list, under "What a handler can tell".
"""

from typing import NamedTuple


class Allowed(NamedTuple):
    """One thing that a handler can tell, and what it finds in a unit."""

    what: str
    in_a_unit: str


ALLOWED = (
    Allowed("`now()` and `CURRENT_TIMESTAMP` on PostgreSQL", "The time at which the unit began"),
    Allowed("Transaction ids, such as `txid_current()` and `xmin`", "The same for all messages of the unit"),
    Allowed("When other connections see the changes", "After the last message of the unit"),
    Allowed("Row locks and transaction-level advisory locks", "Held until the unit ends"),
    Allowed("Snapshots at REPEATABLE READ and SERIALIZABLE", "One for the whole unit"),
    Allowed("Deferred constraints and deferred triggers", "Checked when the unit commits"),
    Allowed("Statement-level triggers", "May fire once for rows that several messages added"),
    Allowed("Ids from sequences and AUTO_INCREMENT", "Have gaps where a unit ran again"),
)
