"""Each known way in which a handler could tell that it shares a unit, as one small program."""

from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm.exc import DetachedInstanceError

from tests.differential import operations as ops
from tests.differential.models import START, Order
from tests.differential.named import WAYS, accounts, does, only_on, same
from tests.differential.operations import ASYNCPG, SERVERS, Operation
from tests.differential.programs import Ending, Kind, Program, together
from tests.differential.run import Runner
from tests.differential.tools import Tools

# One session for several handlers.


@WAYS
def test_a_change_through_the_orm_and_an_update_on_the_connection_both_count(runner: Runner, isolated: bool) -> None:  # noqa: FBT001 - a parameter
    """10 + 5 + 7: the UPDATE of the second message must see the change of the first, and must not be overwritten."""
    first, second = does(ops.Deposit("a", 5)), does(ops.CoreUpdate("a", 7), kind=Kind.CONNECTION)
    assert accounts(runner, first, second, isolated=isolated)["a"] == START + 5 + 7
    same(runner, first, second)


@pytest.mark.parametrize("kind", [Kind.BOTH, Kind.CONNECTION, Kind.DEF, Kind.DEF_CONNECTION], ids=lambda kind: kind.value)
def test_a_connection_reads_what_an_earlier_message_left_in_its_session(runner: Runner, kind: Kind) -> None:
    """Core, SQL text and the driver."""
    same(
        runner,
        does(ops.AddOrder("x", 1), ops.Deposit("a", 5)),
        does(ops.CoreReadOrders(), ops.CoreRead("a"), ops.DriverSql("a"), ops.DriverRead("a"), kind=kind),
    )


def test_the_drivers_own_connection_reads_what_an_earlier_message_left_in_its_session(runner: Runner) -> None:
    """The annotation is `asyncpg.Connection`."""
    only_on(runner, frozenset({ASYNCPG}))
    same(
        runner,
        does(ops.AddOrder("x", 1), ops.Deposit("a", 5)),
        does(ops.DriverRead("a"), ops.DriverUpdate("a"), kind=Kind.DRIVER),
        does(ops.Get("a")),
    )


def test_an_object_that_something_keeps_is_read_again_by_a_later_message(runner: Runner) -> None:
    """A cache keeps the account of the first message. The second one must read the other connection's commit."""
    only_on(runner, SERVERS)
    first, second = does(ops.Remember("a")), does(ops.Outside("a", 5), ops.LockAndDeposit("a", 1))
    assert accounts(runner, first, second)["a"] == START + 5 + 1
    same(runner, first, second)


def test_get_reads_the_row_again_in_each_message(runner: Runner) -> None:
    """`session.get` answers from the session. Each message has its own."""
    only_on(runner, SERVERS)
    same(runner, does(ops.Remember("a")), does(ops.Outside("a", 5), ops.Get("a")))


def test_a_raw_update_of_an_earlier_message_is_read_through_the_orm(runner: Runner) -> None:
    """The account was loaded by the first message, and changed by the second one past its session."""
    same(runner, does(ops.Remember("a")), does(ops.DriverSql("a")), does(ops.Get("a"), ops.Deposit("a", 1)))


@pytest.mark.parametrize("removes", [ops.ExpungeAll(), ops.ExpireAll()], ids=["expunge_all", "expire_all"])
@WAYS
def test_a_message_that_empties_its_session_takes_nothing_from_earlier_ones(
    runner: Runner,
    removes: Operation,
    isolated: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The first message's change and row are written before the second one runs."""
    first, second = does(ops.Deposit("a", 5), ops.AddOrder("x")), does(removes)
    ran = runner.run(runner.bench.shop.run(together(first, second), isolated=isolated))
    assert dict(ran.rows["accounts"])["a"] == START + 5
    assert "x-0-1" in [row[0] for row in ran.rows["orders"]]
    same(runner, first, second)


def test_a_session_is_empty_when_a_handler_begins(runner: Runner) -> None:
    """Nothing is new, dirty or deleted, and no savepoint is open."""
    work = (ops.Deposit("a", 5), ops.AddOrder("x"), ops.CountSession())
    same(runner, does(*work), does(ops.CountSession(), ops.ReadOrder("one")), does(*work, kind=Kind.DEF))


def test_a_message_is_not_blamed_for_what_an_earlier_one_left_to_the_flush(runner: Runner) -> None:
    """The second message's first query flushes. The row that the database refuses is the first one's."""
    same(runner, does(ops.Get("a"), ending=Ending.BREAK), does(ops.SelectAll(), ops.Count()))


def test_an_object_that_an_earlier_message_kept_cannot_be_changed_by_a_later_one(runner: Runner) -> None:
    """It belongs to no session any more, so that change is never written."""
    same(runner, does(ops.Remember("a"), ops.Deposit("a", 1)), does(ops.ChangeRemembered(), ops.SelectAll()))


@dataclass(frozen=True)
class RememberOrder(Operation):
    """Keeps an order without its lines."""

    async def run(self, to: Tools) -> None:
        """Keep it."""
        to.side.kept[to.message] = [await to.session.scalar(select(Order).where(Order.name == "one"))]


@dataclass(frozen=True)
class LoadLinesOfRemembered(Operation):
    """Uses a relationship of an order that an earlier message kept."""

    async def run(self, to: Tools) -> None:
        """Load it lazily."""
        kept: list[Any] = to.side.kept[0]
        try:
            lines = await kept[0].awaitable_attrs.lines
        except DetachedInstanceError:
            self.note(to, "detached")
        else:
            self.note(to, [line.what for line in lines])


def test_a_relationship_of_an_object_that_an_earlier_message_kept_cannot_be_loaded(runner: Runner) -> None:
    """It is detached, as in plain SQLAlchemy when its session has ended."""
    same(runner, does(RememberOrder()), does(ops.Get("a"), LoadLinesOfRemembered()))


def test_column_defaults_and_listeners_see_the_context_of_their_own_handler(runner: Runner) -> None:
    """A default that reads a ContextVar, and listeners of the mapper: the flush is part of the handler."""
    work = does(ops.AddOrder("x", 2), ops.Deposit("a", 1))
    same(runner, work, work, does(ops.AddOrder("x", 1), kind=Kind.DEF), does(ops.AddOrder("x", 1), kind=Kind.PROVIDER))


def test_a_context_variable_is_that_of_the_handler_in_a_unit_of_one(runner: Runner) -> None:
    """Its flush is the last one before COMMIT."""
    runner.check(Program((does(ops.AddOrder("x", 1)), does(ops.Deposit("a", 1), kind=Kind.DEF)), (1, 1)))


def test_a_version_counter_counts_each_message(runner: Runner) -> None:
    """`version_id_col`: two messages that change one row are two changes."""
    same(runner, does(ops.BumpVersioned()), does(ops.BumpVersioned()), does(ops.BumpVersioned(), ops.BumpVersioned()))


def test_a_change_inside_a_json_value_is_lost_unless_it_is_flagged(runner: Runner) -> None:
    """A later message must not have it written either."""
    same(runner, does(ops.SetTag("one", flagged=False)), does(ops.SetTag("one", flagged=True), ops.ReadOrder("one")))


def test_relationships_are_read_again_in_each_message(runner: Runner) -> None:
    """Lines that an earlier message added, removed, or deleted in bulk."""
    same(
        runner,
        does(ops.AddLine("one"), ops.AddLine("two")),
        does(ops.LoadLines("one"), ops.RemoveLine("one")),
        does(ops.BulkDelete("two"), ops.ReadOrder("one")),
        does(ops.ReadOrder("two"), ops.DeleteOrder("two")),
        does(ops.ReadOrder("two"), ops.AddNamedOrder("two")),
    )


# A message that fails.


@pytest.mark.parametrize(
    "ending", [each for each in Ending if each is not Ending.RETURN], ids=lambda ending: ending.value.replace(" ", "_")
)
@pytest.mark.parametrize("kind", [Kind.SESSION, Kind.DEF], ids=lambda kind: kind.value)
def test_the_data_is_the_same_whether_or_not_a_message_failed_shortly_before(
    runner: Runner, ending: Ending, kind: Kind
) -> None:
    """Isolated units must flush where other units flush."""
    good = (does(ops.Deposit("a", 5)), does(ops.CoreUpdate("a", 7), ops.CoreRead("a"), kind=Kind.CONNECTION))
    bad = does(ops.Deposit("a", 100), ops.AddOrder("x"), ops.Publish(), kind=kind, ending=ending)
    for messages in (good, (*good, bad), (bad, *good), (good[0], bad, good[1])):
        for isolated in (False, True):
            ran = runner.run(runner.bench.shop.run(together(*messages), isolated=isolated))
            assert dict(ran.rows["accounts"])["a"] == START + 5 + 7
    same(runner, good[0], bad, good[1], does(ops.SelectAll(), ops.Publish()))


def test_a_savepoint_whose_error_is_caught_leaves_the_rest_of_the_message(runner: Runner) -> None:
    """`begin_nested` with an IntegrityError, in the session and on the connection."""
    same(
        runner,
        does(ops.Deposit("a", 5), ops.NestedDuplicate("one"), ops.NestedRolledBack("a"), ops.Get("a")),
        does(ops.CoreNestedDuplicate("a"), ops.CoreUpdate("a", 2), ops.Get("a"), kind=Kind.BOTH),
        does(ops.NestedDuplicate("one"), ops.Nested("a"), ops.CoreNestedDuplicate("b"), ops.SelectAll(), kind=Kind.DEF),
    )


def test_entities_and_tables_of_one_message_fail_together(runner: Runner) -> None:
    """A message that fails changes neither; later ones find what was committed."""
    work = (ops.Tally(), ops.Deposit("a", 1), ops.Tally())
    fails = does(*work, kind=Kind.ENTITY, ending=Ending.RAISE)
    same(runner, does(*work, kind=Kind.ENTITY), fails, does(*work, kind=Kind.ENTITY), does(ops.CoreRead("a")))


# What a unit reads.


def test_each_message_reads_what_other_connections_have_committed(runner: Runner) -> None:
    """Units run at READ COMMITTED, also on MariaDB, unless isolation was chosen: 16, not 11."""
    only_on(runner, SERVERS)
    first = does(ops.CoreRead("a"), kind=Kind.CONNECTION)
    second = does(ops.Outside("a", 5), ops.CoreReadAndWrite("a"), kind=Kind.CONNECTION)
    assert accounts(runner, first, second)["a"] == START + 5 + 1
    same(runner, first, second)


def test_a_message_alone_in_its_unit_reads_what_was_committed_while_it_ran(runner: Runner) -> None:
    """The same within one message."""
    only_on(runner, SERVERS)
    work = does(ops.CoreRead("a"), ops.Outside("a", 5), ops.CoreReadAndWrite("a"), kind=Kind.CONNECTION)
    runner.check(Program((work, work), (1, 1)))


def test_a_message_that_catches_the_error_of_its_own_flush_fails(runner: Runner) -> None:
    """`begin_nested` flushes what was added before it. What fails there is undone with the whole transaction."""
    twice = ops.AddAccount("x")
    fails = does(twice, twice, ops.NestedDuplicate("one"))
    same(runner, does(ops.NestedDuplicate("one")), fails, does(twice))
