"""What belongs to one database transaction or connection: the next message of the unit must not find it."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
from sqlalchemy import text

from tests.differential import operations as ops
from tests.differential.models import START
from tests.differential.named import WAYS, does, only_on, same
from tests.differential.operations import ASYNCPG, MARIADB, POSTGRESQL, SQLITE, Operation
from tests.differential.programs import Kind, together
from tests.differential.run import Runner
from tests.differential.tools import Tools

_SETS = [
    ops.SetLocal(),
    ops.SetConfig(),
    ops.SetSearchPath(),
    ops.SetReplicationRole(),
    ops.SetByDriver(),
]


@pytest.mark.parametrize("sets", _SETS, ids=lambda operation: type(operation).__name__)
@pytest.mark.parametrize("kind", [Kind.BOTH, Kind.DEF], ids=lambda kind: kind.value)
def test_a_setting_of_one_message_does_not_hold_for_the_next(runner: Runner, sets: Operation, kind: Kind) -> None:
    """SET LOCAL of a tenant, `search_path` and `session_replication_role`, and `set_config(..., true)`."""
    only_on(runner, POSTGRESQL)
    same(runner, does(ops.ReadSettings()), does(sets, ops.ReadSettings(), kind=kind), does(ops.ReadSettings(), kind=kind))


def _sql(statement: str, database: frozenset[str], *, by_driver: bool = False) -> Operation:
    @dataclass(frozen=True)
    class Sql(Operation):
        needs = "connection"
        where = database
        own_transaction = True

        async def run(self, to: Tools) -> None:
            if by_driver:
                await to.ask_driver(statement)
            else:
                await (await to.connection()).execute(text(statement))

    return Sql()


_STATEMENTS = [
    "SET LOCAL ROLE pg_monitor",
    "SET ROLE pg_monitor",
    "SET statement_timeout = '7s'",
    "/* a comment */ set local statement_timeout = '7s'",
    "SET LOCAL TIME ZONE 'Asia/Tokyo'; SET LOCAL statement_timeout = '7s'",
    "SELECT 1, set_config('diff.tenant', 'x', true)",
    "DO $$ BEGIN PERFORM set_config('diff.tenant', 'x', true); END $$",
    "SET CONSTRAINTS ALL IMMEDIATE",
]


@pytest.mark.parametrize("statement", _STATEMENTS)
def test_a_role_of_one_message_does_not_hold_for_the_next(fresh: Runner, statement: str) -> None:
    """Also in forms that are harder to recognize. Each transaction has a connection of its own here."""
    only_on(fresh, POSTGRESQL)
    if ";" in statement and not statement.startswith("DO") and fresh.name == ASYNCPG:
        pytest.skip("asyncpg prepares each statement, and takes one at a time")
    same(fresh, does(_sql(statement, POSTGRESQL)), does(ops.ReadSettings(), ops.CoreInsert()), does(ops.ReadSettings()))


class Left(NamedTuple):
    """What a message leaves, and a query that finds it."""

    what: str
    where: frozenset[str]
    leaves: str
    looks: str


_TEMPORARY, _PREPARED = (
    "SELECT to_regclass('pg_temp.left_behind')",
    "SELECT name FROM pg_prepared_statements WHERE name = 'left'",
)
_CURSOR = "SELECT name FROM pg_cursors WHERE name = 'left_behind'"
_SET_TENANT, _TENANT = "SET LOCAL diff.left_behind = 'x'", "SELECT current_setting('diff.left_behind', true) = 'x'"
_SET_TWO = "SELECT set_config('diff.left_behind', 'x', false), set_config('diff.other', 'y', true)"
_LOCK = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND objid = 4712 AND pid = pg_backend_pid()"
_NAMED_LOCK = "SELECT IS_USED_LOCK('left_behind') = CONNECTION_ID()"
_ON_MARIADB, _ON_SQLITE = frozenset({MARIADB}), frozenset({SQLITE})
LEFT = (
    Left("temporary table", POSTGRESQL, "CREATE TEMPORARY TABLE left_behind (n integer)", _TEMPORARY),
    Left("table dropped on commit", POSTGRESQL, "CREATE TEMP TABLE left_behind ON COMMIT DROP AS SELECT 1 AS n", _TEMPORARY),
    Left("SELECT INTO TEMP", POSTGRESQL, "SELECT 1 AS n INTO TEMP left_behind", _TEMPORARY),
    Left("table in pg_temp", POSTGRESQL, "CREATE TABLE pg_temp.left_behind (n integer)", _TEMPORARY),
    Left("setting in a block", POSTGRESQL, f"DO $$ BEGIN {_SET_TENANT}; END $$", _TENANT),
    Left("second set_config", POSTGRESQL, _SET_TWO, _TENANT),
    Left("cursor", POSTGRESQL, "DECLARE left_behind CURSOR FOR SELECT 1", _CURSOR),
    Left("cursor with hold", POSTGRESQL, "DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1", _CURSOR),
    Left("prepared statement", POSTGRESQL, 'PREPARE "left" AS SELECT 1', _PREPARED),
    Left("session lock", POSTGRESQL, "SELECT pg_advisory_lock(4712)", _LOCK),
    Left("LISTEN", POSTGRESQL, "LISTEN left_behind", "SELECT pg_listening_channels()"),
    Left("variable", _ON_MARIADB, "SET @left_behind = 5", "SELECT @left_behind"),
    Left("variable with a number", _ON_MARIADB, "SELECT @1 := 5", "SELECT @1"),
    Left("setting in a block", _ON_MARIADB, "IF 1 THEN SET group_concat_max_len = 77; END IF", "SELECT @@group_concat_max_len"),
    Left("variable in a SELECT", _ON_MARIADB, "SELECT @left_behind := 5", "SELECT @left_behind"),
    Left("variable by INTO", _ON_MARIADB, "SELECT 5 INTO @left_behind", "SELECT @left_behind"),
    Left("named lock", _ON_MARIADB, "SELECT GET_LOCK('left_behind', 1)", _NAMED_LOCK),
    Left("temporary table", _ON_MARIADB, "CREATE TEMPORARY TABLE left_behind (n integer)", "SHOW CREATE TABLE left_behind"),
    Left("session setting", _ON_MARIADB, "SET SESSION group_concat_max_len = 77", "SELECT @@group_concat_max_len"),
    Left("last insert id", _ON_MARIADB, "SELECT LAST_INSERT_ID(4713)", "SELECT LAST_INSERT_ID() = 4713"),
    Left("temporary table", _ON_SQLITE, "CREATE TEMP TABLE left_behind (n integer)", "SELECT name FROM sqlite_temp_master"),
    Left("table in temp", _ON_SQLITE, "CREATE TABLE temp.left_behind (n integer)", "SELECT name FROM sqlite_temp_master"),
    Left("pragma of the transaction", _ON_SQLITE, "PRAGMA defer_foreign_keys = ON", "PRAGMA defer_foreign_keys"),
    Left("pragma of the connection", _ON_SQLITE, "PRAGMA recursive_triggers = ON", "PRAGMA recursive_triggers"),
)


@dataclass(frozen=True)
class Look(Operation):
    """Looks for what an earlier message left."""

    query: str
    needs = "connection"

    async def run(self, to: Tools) -> None:
        """Read it; an error is an answer, too."""
        connection = await to.connection()
        try:
            async with connection.begin_nested():
                found = await connection.execute(text(self.query))
                self.note(to, [tuple(row) for row in found])
        except Exception as error:  # noqa: BLE001 - such as "this table does not exist"
            self.note(to, type(error).__name__)


@pytest.mark.parametrize("left", LEFT, ids=lambda left: left.what.replace(" ", "_"))
@pytest.mark.parametrize("kind", [Kind.BOTH, Kind.DEF_CONNECTION], ids=lambda kind: kind.value)
def test_what_one_message_leaves_on_its_connection_is_not_there_for_the_next(fresh: Runner, left: Left, kind: Kind) -> None:
    """Each transaction has a connection of its own here, so that a pool hides nothing."""
    only_on(fresh, left.where)
    look = Look(left.looks)
    same(fresh, does(ops.CoreRead("a")), does(_sql(left.leaves, left.where), look, kind=kind), does(look, kind=kind))


def test_a_temporary_table_can_have_the_same_name_in_each_message(runner: Runner) -> None:
    """Each message begins with an empty one."""
    one = ops.TemporaryTable() if runner.name in POSTGRESQL else ops.DroppedTemporaryTable()
    same(runner, does(one), does(ops.Deposit("a", 1)), does(one), does(one, kind=Kind.DEF_CONNECTION))


def test_a_cursor_can_have_the_same_name_in_each_message(runner: Runner) -> None:
    """DECLARE and FETCH: the second message must not fetch the second row."""
    only_on(runner, POSTGRESQL)
    same(runner, does(ops.Cursor()), does(ops.Cursor(), ops.Cursor()), does(ops.Cursor(), kind=Kind.CONNECTION))


@WAYS
def test_a_savepoint_in_sql_of_one_message_is_not_there_for_the_next(runner: Runner, isolated: bool) -> None:  # noqa: FBT001 - a parameter
    """ROLLBACK TO the other message's savepoint must fail, and must undo nothing of it."""
    first = does(_sql("SAVEPOINT mine", frozenset({runner.name})), ops.CoreUpdate("a", 5))
    second = does(_sql("ROLLBACK TO SAVEPOINT mine", frozenset({runner.name})))
    ran = runner.run(runner.bench.shop.run(together(first, second), isolated=isolated))
    assert dict(ran.rows["accounts"])["a"] == START + 5
    assert list(ran.failed) == [1]
    same(runner, does(ops.HandMadeSavepoint("a")), does(ops.Deposit("a", 3)), does(ops.HandMadeSavepoint("a", undo=False)))
    same(runner, first, second)
