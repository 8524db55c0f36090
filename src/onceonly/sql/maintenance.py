"""How a database empties a table at once and elects one process, which differs between databases."""

from typing import Protocol

from sqlalchemy import Connection, Table


class RingMaintenance(Protocol):
    """Maintenance of one SQL database. Its methods run in SQLAlchemy's greenlet, in a transaction for `Purpose.WRITING`.

    Without `leads_in_transaction`, `lead` and `follow` run outside of a transaction.
    """

    leads_in_transaction: bool
    """Whether `lead` and `follow` run in a transaction too. Its end then ends the lead."""

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Take a lock of this name until the end of the transaction. Return at once whether it was free."""

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Keep units from using a table until the end of the transaction. Each unit reads the table's lowest row first.

        Without `by_rows`, keep readers away too, where they would be in the way of `empty`. Return False if other transactions
        use the table for longer than this one can wait. The caller then rolls back.
        """

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Delete all rows of a table after `shut`. Return False as `shut` does; the lowest row may be deleted then.

        Without `by_rows`, it may do so by another way than deleting rows, such as TRUNCATE.
        """

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Return how many bytes a table has with its indexes, or the whole database where that is not known."""

    def lead(self, connection: Connection, name: str) -> bool:
        """Take the lead of this name until `follow`, or until the connection ends. Return at once whether it was free."""

    def follow(self, connection: Connection, name: str) -> None:
        """Give up the lead."""
