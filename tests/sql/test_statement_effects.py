"""What the text of a statement does, and that no text takes long."""

import time

import pytest

from onceonly.adapters.mariadb.connection import EFFECTS as MARIADB
from onceonly.adapters.postgresql.statements import EFFECTS as POSTGRESQL
from onceonly.adapters.sqlite.dialect import SQLite
from onceonly.sql.statement_effects import LEFT, LOCAL, SESSION, Effect, StatementEffects

FOUND: list[tuple[StatementEffects, str, Effect | None]] = [
    (POSTGRESQL, "UPDATE t SET a = 1", None),
    (POSTGRESQL, "SELECT pg_advisory_xact_lock(1)", None),
    (POSTGRESQL, "SELECT 1; set role x", SESSION),
    (POSTGRESQL, "-- why\n/* a */ SET LOCAL x = 1", LOCAL),
    (POSTGRESQL, "RESET ALL", SESSION),
    (POSTGRESQL, "SELECT set_config('a', 'b', true)", LOCAL),
    (POSTGRESQL, "SELECT set_config($1, $2, $3)", SESSION),
    (POSTGRESQL, "SET CONSTRAINTS ALL DEFERRED", Effect.OWN),
    (POSTGRESQL, "CREATE TEMP TABLE x (a int) ON COMMIT DROP", Effect.OWN),
    (POSTGRESQL, "CREATE TEMPORARY TABLE x (a int)", LEFT),
    (POSTGRESQL, "SELECT pg_try_advisory_lock(1)", Effect.OWN | Effect.SETS_SESSION),
    (POSTGRESQL, "SAVEPOINT mine", Effect.OWN),
    (POSTGRESQL, "SAVEPOINT sa_savepoint_1", None),
    (POSTGRESQL, "ROLLBACK TO SAVEPOINT sa_savepoint_1", Effect.ROLLS_BACK),
    (POSTGRESQL, "/* a */ /* b */ COMMIT", Effect.ENDS),
    (POSTGRESQL, "/* a /* b */ c */ SET LOCAL x = 1", LOCAL),
    (POSTGRESQL, "/* a /* b */ c */ COMMIT", Effect.ENDS),
    (POSTGRESQL, "SET/**/LOCAL -- why\n x = 1", LOCAL),
    (POSTGRESQL, "SELECT set_config('a', 'b', false), set_config('c', 'd', true)", SESSION),
    (POSTGRESQL, "SELECT set_config('a', 'b, true)', false)", SESSION),
    (POSTGRESQL, "SELECT set_config('a', lower(%(name)s), true)", LOCAL),
    (POSTGRESQL, "SELECT pg_catalog.\"set_config\" ('a', 'b', true)", LOCAL),
    (POSTGRESQL, "UPDATE pg_settings SET setting = '5s' WHERE name = 'lock_timeout'", SESSION),
    (POSTGRESQL, "DO $$ BEGIN SET LOCAL x = 1; END $$", LEFT | Effect.SETS),
    (POSTGRESQL, "CREATE TABLE pg_temp.x (a int)", LEFT),
    (POSTGRESQL, "SELECT 1 AS a INTO pg_temp.x", LEFT),
    (POSTGRESQL, "SELECT setseed(0.5)", LEFT),
    (POSTGRESQL, "SELECT '/*' || a || '--' FROM t", None),
    (MARIADB, "SET @x = 1", LEFT | Effect.SETS),
    (MARIADB, "SELECT @1 := 5", LEFT),
    (MARIADB, "SELECT `GET_LOCK`('a', 1)", LEFT),
    (MARIADB, "CREATE /* a */ TEMPORARY TABLE x (a int)", LEFT),
    (MARIADB, "IF 1 THEN SET sql_mode = ''; END IF", LEFT | Effect.SETS),
    (MARIADB, "/*!50000 SET sql_mode = '' */", LEFT | Effect.SETS),
    (MARIADB, "# why\nSET sql_mode = ''", LEFT | Effect.SETS),
    (MARIADB, "SET STATEMENT max_statement_time = 1 FOR SELECT 1", None),
    (MARIADB, "UPDATE t SET a = 'x@example.com'", None),
    (MARIADB, "SELECT @x", LEFT),
    (MARIADB, "SELECT GET_LOCK('a', 1)", LEFT),
    (MARIADB, "SELECT LAST_INSERT_ID()", None),
    (MARIADB, "SELECT LAST_INSERT_ID(4)", LEFT),
    (SQLite.effects, "PRAGMA main.table_info(t)", None),
    (SQLite.effects, "PRAGMA foreign_keys = OFF", LEFT),
    (SQLite.effects, "PRAGMA/**/foreign_keys = OFF", LEFT),
    (SQLite.effects, "CREATE TABLE temp.x (a)", LEFT),
    (SQLite.effects, 'CREATE TRIGGER IF NOT EXISTS "temp".x AFTER INSERT ON t BEGIN SELECT 1; END', LEFT),
    (SQLite.effects, "CREATE TABLE x (temp)", None),
]


@pytest.mark.parametrize(("effects", "statement", "effect"), FOUND, ids=[statement for _, statement, _ in FOUND])
def test_the_effect_of_a_text_is_found(effects: StatementEffects, statement: str, effect: Effect | None) -> None:
    """Also behind comments, and behind another statement."""
    assert effects(statement) == effect


@pytest.mark.parametrize("effects", [POSTGRESQL, MARIADB, SQLite.effects], ids=["postgresql", "mariadb", "sqlite"])
@pytest.mark.parametrize("text", ["/* a */ ", "-- a\n", ";", "\n    ", "/*", "a@b.c, ", "set_config(", "(%s, %s), "])
def test_no_text_takes_long(effects: StatementEffects, text: str) -> None:
    """A text of hostile comments took hours: each comment doubled the time."""
    before = time.process_time()
    effects(text * 400 + "SELECT 1")
    assert time.process_time() - before < 5
