"""Breaking the boundary between two handlers: the comparison must notice each way. Otherwise it would prove nothing."""

from collections.abc import Callable

import pytest

from onceonly.sql.statement_effects import StatementEffects
from onceonly.sql.store.handler_scope import HandlerScope
from onceonly.sql.store.late_rows import LateRows
from onceonly.sql.store.resources import SqlResources
from tests.differential import operations as ops
from tests.differential.named import does, only_on, same
from tests.differential.operations import POSTGRESQL
from tests.differential.programs import Kind, Message
from tests.differential.run import Runner

Break = Callable[[pytest.MonkeyPatch], None]


def do_nothing(*_: object) -> None:
    """Stand for a method."""


def share_a_session(patch: pytest.MonkeyPatch) -> None:
    """Return the second handler the session of the first one."""
    begin = SqlResources.begin_attempt

    def begin_attempt(self: SqlResources, handler: str) -> None:
        before = self._scope
        begin(self, handler)
        if before is not None and before._session is not None and self._scope is not None:
            self._scope._session = before._session

    patch.setattr(SqlResources, "begin_attempt", begin_attempt)
    patch.setattr(HandlerScope, "end", do_nothing)


def keep_settings(patch: pytest.MonkeyPatch) -> None:
    """Let a setting stay for the next message."""
    patch.setattr(StatementEffects, "__call__", do_nothing)


def write_at_the_commit(patch: pytest.MonkeyPatch) -> None:
    """Insert the objects of earlier messages only at the commit."""
    patch.setattr(SqlResources, "begin_statements", do_nothing)
    patch.setattr(SqlResources, "begin_first", do_nothing)


def forget_what_a_handler_left(patch: pytest.MonkeyPatch) -> None:
    """Close the session without writing its changes."""
    patch.setattr(HandlerScope, "flush", do_nothing)


def lose_late_rows(patch: pytest.MonkeyPatch) -> None:
    """Take the rows of new objects, and insert none."""
    patch.setattr(LateRows, "write", do_nothing)


ADDS, READS = does(ops.AddOrder("x")), does(ops.CoreReadOrders(), kind=Kind.CONNECTION)
CASES: dict[Break, tuple[Message, ...]] = {
    share_a_session: (does(ops.Remember("a")), does(ops.CoreUpdate("a", 7), ops.Deposit("a", 1), kind=Kind.BOTH)),
    keep_settings: (does(ops.SetLocal()), does(ops.ReadSettings())),
    forget_what_a_handler_left: (does(ops.Deposit("a", 5)), does(ops.Get("a"))),
    write_at_the_commit: (ADDS, READS),
    lose_late_rows: (ADDS, does(ops.Count())),
}


@pytest.mark.parametrize("broken", CASES, ids=lambda broken: broken.__name__)
def test_a_broken_boundary_is_noticed(runner: Runner, monkeypatch: pytest.MonkeyPatch, broken: Break) -> None:
    """By a program that passes without the fault."""
    if broken is keep_settings:
        only_on(runner, POSTGRESQL)
    same(runner, *CASES[broken])
    with monkeypatch.context() as patch:
        broken(patch)
        with pytest.raises(AssertionError):
            same(runner, *CASES[broken])
