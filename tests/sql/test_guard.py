"""SQL text that ends a unit's transaction is refused each time, whether its effect is remembered or not."""

from typing import Any

import pytest
from sqlalchemy import Connection

from onceonly.sql.guard import HandlerConnection, check_statement, guarding
from onceonly.sql.statement_effects import LONGEST_KNOWN, Effect, StatementEffects

ENDING = ["COMMIT", "rollback", "/* x */ end", "BEGIN", "START TRANSACTION", "abort"]
HARMLESS = ["INSERT INTO t VALUES (1)", "SELECT 'COMMIT'", "ENDING", "SAVEPOINT a"]


EFFECTS = StatementEffects()


class Asked:
    """What a handler has of its unit. It checks statements and does nothing else."""

    def before(self, statement: str, effect: Effect | None) -> None:
        """Check it."""
        if effect is not None:
            check_statement(statement, effect, EFFECTS)


class Watched(HandlerConnection):
    """Stands for a handler's connection, of which the guard reads the attributes only."""

    def __init__(self) -> None:
        self.unit: Any = None
        self.scope: Any = Asked()


class Other:
    """Stands for a connection of the handler's own."""


def watched(*, guarded: bool) -> Connection:
    """Return a connection of a unit, or another one."""
    connection: Any = Watched() if guarded else Other()
    return connection  # type: ignore[no-any-return]  # it stands for one


@pytest.mark.parametrize("padding", ["", " " * LONGEST_KNOWN])
@pytest.mark.parametrize("statement", ENDING)
def test_a_text_that_ends_the_transaction_is_refused_each_time(statement: str, padding: str) -> None:
    """Also when it is too long to be remembered."""
    refuse = guarding(lambda _: False, EFFECTS)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="is not allowed here"):
            refuse(watched(guarded=True), f"{padding}{statement}")


@pytest.mark.parametrize("statement", HARMLESS)
def test_other_text_is_refused_once_the_transaction_has_ended(statement: str) -> None:
    """Whatever was seen of the same text before."""
    ended = False
    refuse, unit = guarding(lambda _: ended, EFFECTS), watched(guarded=True)
    refuse(unit, statement)
    ended = True
    with pytest.raises(RuntimeError, match="has ended"):
        refuse(unit, statement)
    ended = False
    refuse(unit, statement)


def test_a_rollback_to_a_savepoint_is_left_to_the_database() -> None:
    """It is what mends an aborted transaction."""
    guarding(lambda _: True, EFFECTS)(watched(guarded=True), "ROLLBACK TO SAVEPOINT a")


@pytest.mark.parametrize("statement", ENDING)
def test_a_connection_of_a_handler_itself_may_end_its_transactions(statement: str) -> None:
    """The same text is refused on a unit's connection."""
    refuse = guarding(lambda _: True, EFFECTS)
    with pytest.raises(RuntimeError):
        refuse(watched(guarded=True), statement)
    refuse(watched(guarded=False), statement)
