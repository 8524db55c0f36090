"""What upkeep asks of a database beside statements: that a table be emptied at once, and that only one process is at it."""

from typing import Protocol

from sqlalchemy import Connection, Table


class RingMaintenance(Protocol):
    """One database system. Its functions run inside SQLAlchemy's greenlet, in a writing transaction but for the last two."""

    leads_in_transaction: bool
    """Whether the last two run in a writing transaction as well, so that its end is what gives the lead back."""

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Be the only transaction of this name, until it ends, if no other one is; tells whether it is so, at once."""

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Keep units from a table whose lowest row each of them looks at first, until the transaction ends.

        Without `by_rows` who only reads is kept out as well, where that is in the way. False: somebody has used it for longer
        than can be waited for, and the transaction must be dropped.
        """

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Remove all rows of a table that is shut; False as for `shut`, and then its lowest row may be gone."""

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Tell how many bytes a table takes with its indexes, or all tables together where nobody knows of a single one."""

    def lead(self, connection: Connection, name: str) -> bool:
        """Be the only connection of this name, until `follow` or its end, if no other one is; tells at once whether it is."""

    def follow(self, connection: Connection, name: str) -> None:
        """Undo `lead`."""
