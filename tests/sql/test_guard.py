"""SQL text that ends a unit's transaction is refused each time, whether its effect is remembered or not."""

from typing import Any

import pytest
from sqlalchemy import Connection

from onceonly.sql.guard import LONGEST_KNOWN, guard_connection, guarding

ENDING = ["COMMIT", "rollback", "/* x */ end", "BEGIN", "START TRANSACTION", "abort"]
HARMLESS = ["INSERT INTO t VALUES (1)", "SELECT 'COMMIT'", "ENDING", "SAVEPOINT a"]


class Watched:
    """Stands for a connection, of which the guard reads and writes the attributes only."""


def watched(*, guarded: bool) -> Connection:
    """Return a connection of a unit, or another one."""
    connection: Any = Watched()
    if guarded:
        guard_connection(connection)
    return connection  # type: ignore[no-any-return]  # it stands for one


@pytest.mark.parametrize("padding", ["", " " * LONGEST_KNOWN])
@pytest.mark.parametrize("statement", ENDING)
def test_a_text_that_ends_the_transaction_is_refused_each_time(statement: str, padding: str) -> None:
    """Also when it is too long to be remembered."""
    refuse = guarding(lambda _: False)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="is not allowed here"):
            refuse(watched(guarded=True), f"{padding}{statement}")


@pytest.mark.parametrize("statement", HARMLESS)
def test_other_text_is_refused_once_the_transaction_has_ended(statement: str) -> None:
    """Whatever was seen of the same text before."""
    ended = False
    refuse, unit = guarding(lambda _: ended), watched(guarded=True)
    refuse(unit, statement)
    ended = True
    with pytest.raises(RuntimeError, match="has ended"):
        refuse(unit, statement)
    ended = False
    refuse(unit, statement)


def test_a_rollback_to_a_savepoint_is_left_to_the_database() -> None:
    """It is what mends an aborted transaction."""
    guarding(lambda _: True)(watched(guarded=True), "ROLLBACK TO SAVEPOINT a")


@pytest.mark.parametrize("statement", ENDING)
def test_a_connection_of_a_handler_itself_may_end_its_transactions(statement: str) -> None:
    """The same text is refused on a unit's connection."""
    refuse = guarding(lambda _: True)
    with pytest.raises(RuntimeError):
        refuse(watched(guarded=True), statement)
    refuse(watched(guarded=False), statement)
