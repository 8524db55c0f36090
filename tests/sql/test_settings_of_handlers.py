"""Failures that a setting of the session can cause: an outage, unless the handler itself has set it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from onceonly.adapters.mariadb.dialect import MariaDB
from onceonly.adapters.postgresql.dialect import PostgreSQL
from onceonly.adapters.sqlite.dialect import SQLite
from onceonly.model.errors import CommitFailed, CommitRefused, HandlerFailed, OnceOnlyError, StoreUnavailable
from onceonly.model.message import FailureKind
from onceonly.ports.store import Unit
from onceonly.sql.database import Database
from onceonly.sql.dialect import DatabaseFailure, Dialect
from onceonly.sql.guard import unit_connection
from onceonly.sql.schema import create_user_tables
from onceonly.sql.store import SqlStore
from onceonly.sql.translation import caused_by_setting, failure_of_unit
from tests.sql.conftest import place_named
from tests.sql.every_database import emptied
from tests.sql.harness import Base, connection_of, message, messages, records

CAN_BE_SET = {DatabaseFailure.STATEMENT, DatabaseFailure.FORBIDDEN, DatabaseFailure.READ_ONLY, DatabaseFailure.SESSION}


def made_up(dialect: Dialect, code: object) -> DBAPIError:
    """Make the error that a server's code becomes."""
    match dialect:
        case PostgreSQL():
            cause = type("ServerError", (Exception,), {"sqlstate": code})("made up")
        case SQLite():
            cause = type("FileError", (Exception,), {"sqlite_errorcode": code})("made up")
        case _:
            cause = Exception(code, "made up")
    return DBAPIError("SELECT 1", None, cause)


@pytest.mark.parametrize(
    ("make", "codes"),
    [
        (
            lambda: PostgreSQL("asyncpg"),
            {
                "26000": DatabaseFailure.SESSION,
                "42P05": DatabaseFailure.SESSION,
                "25006": DatabaseFailure.READ_ONLY,
                "42501": DatabaseFailure.FORBIDDEN,
                "53100": DatabaseFailure.UNABLE,
                "42P01": DatabaseFailure.STATEMENT,
            },
        ),
        (
            MariaDB,
            {
                1243: DatabaseFailure.SESSION,
                1792: DatabaseFailure.READ_ONLY,
                1836: DatabaseFailure.READ_ONLY,
                1142: DatabaseFailure.FORBIDDEN,
                1143: DatabaseFailure.FORBIDDEN,
                1227: DatabaseFailure.FORBIDDEN,
                1370: DatabaseFailure.FORBIDDEN,
                1114: DatabaseFailure.UNABLE,
                1146: DatabaseFailure.STATEMENT,
            },
        ),
        (SQLite, {8: DatabaseFailure.READ_ONLY, 13: DatabaseFailure.UNABLE, 1: DatabaseFailure.STATEMENT}),
    ],
    ids=["postgresql", "mariadb", "sqlite"],
)
def test_a_failure_has_the_same_class_on_each_database(
    make: Callable[[], Dialect], codes: dict[object, DatabaseFailure]
) -> None:
    """Wherever it shows first: it is decided by the dialect alone."""
    dialect = make()
    assert {code: dialect.classify(made_up(dialect, code)) for code in codes} == codes


def test_what_a_setting_can_cause_is_known() -> None:
    """A lock, a full disk or a constraint is none of it."""
    assert {each for each in DatabaseFailure if each.can_be_set} == CAN_BE_SET


WRITE = "INSERT INTO orders (id, total) VALUES ('a', 1)"
READ = "SELECT count(*) FROM orders"
SET_ROLE = "SET LOCAL ROLE pg_monitor"


@pytest.fixture
def postgresql(request: pytest.FixtureRequest) -> str:
    """Name a place whose driver prepares each statement."""
    return place_named("postgresql+asyncpg", request, None)  # type: ignore[arg-type] # only SQLite has a file


@pytest.fixture
async def database(postgresql: str) -> AsyncIterator[Database]:
    """Open it with empty tables."""
    async with emptied(postgresql) as database:
        await create_user_tables(database, Base.metadata)
        yield database


async def test_what_a_handler_has_set_is_its_own_failure_and_an_outage_otherwise(database: Database) -> None:
    """By the error of its last statement."""
    unit = await SqlStore(database, "shop").begin([message()])
    connection = connection_of(unit.resources)
    await connection.execute(text(SET_ROLE))
    with pytest.raises(DBAPIError) as failed:
        await connection.execute(text(WRITE))
    assert connection.sync_connection is not None
    own = {"connection": unit_connection(connection.sync_connection), "session": None}
    for error in (failed.value, ExceptionGroup("tasks", [ValueError("a"), failed.value])):
        assert type(failure_of_unit(error, database.dialect, **own)) is StoreUnavailable  # type: ignore[arg-type]
        assert failure_of_unit(error, database.dialect, **own, has_set=True) is None  # type: ignore[arg-type]
    unit.abandon()


async def test_an_error_of_the_library_after_a_setting_is_the_handlers(database: Database) -> None:
    """If the setting can be its cause. The statement is in the reason."""
    for code, is_its in (
        ("42501", True),
        ("25006", True),
        ("26000", True),
        ("42P01", True),
        ("53100", False),
        ("40001", False),
    ):
        error = CommitFailed("ServerError: made up")
        error.__cause__ = made_up(database.dialect, code)
        found = caused_by_setting(error, database.dialect, "SET ROLE pg_monitor")
        assert (type(found) is CommitRefused) is is_its, code
        assert found is None or "ServerError: made up. The handler's 'SET ROLE pg_monitor' may be the cause" in str(found)
    assert caused_by_setting(CommitFailed("a lost connection"), database.dialect, "SET ROLE pg_monitor") is None


async def what_is_raised(working: Awaitable[None], unit: Unit) -> str:
    """Return the class of what this raises, "" for nothing, when its unit is given up."""
    try:
        await working
    except (DBAPIError, OnceOnlyError) as error:
        return type(error).__name__
    finally:
        unit.abandon()
    return ""


async def run(unit: Unit, statements: Sequence[str]) -> None:
    """Handle by these statements."""
    async with unit.resources.attempt():
        for statement in statements:
            await connection_of(unit.resources).execute(text(statement))


async def test_a_statement_that_fails_after_a_setting_fails_the_handler(database: Database) -> None:
    """Its message is retried and counted. It would be retried forever, as if the server were out of order."""
    unit = await SqlStore(database, "shop").begin([message()])
    raised = await what_is_raised(run(unit, (SET_ROLE, WRITE)), unit)
    assert raised in ("DBAPIError", "InternalError", "ProgrammingError", "NotSupportedError")


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_setting_is_not_executed_next_to_other_messages(
    database: Database,
    isolated: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """The message runs again, in a unit of one."""
    unit = await SqlStore(database, "shop").begin(messages(2), isolated=isolated)
    with pytest.raises(HandlerFailed) as failed:
        await run(unit, (SET_ROLE, WRITE))
    assert failed.value.failure.kind is FailureKind.ALONE
    unit.abandon()


async def handle(unit: Unit, statements: Sequence[str]) -> None:
    """Handle by these statements, and commit."""
    await run(unit, statements)
    await unit.commit(records(*unit.found.new, decided=True))


@pytest.mark.parametrize("setting", [SET_ROLE, "SET ROLE pg_monitor", "SET LOCAL search_path TO nowhere", "RESET ALL"])
async def test_the_librarys_own_statements_do_not_depend_on_a_setting(database: Database, setting: str) -> None:
    """The records are written, and the next unit finds the session as it was."""
    store = SqlStore(database, "shop")
    for number in range(3):
        unit = await store.begin([message(f"m{number}")])
        assert await what_is_raised(handle(unit, [setting]), unit) == ""
    assert len(await store.undispatched(1 << 52, 10)) == 3
    async with database.engine.connect() as connection:
        assert (await connection.execute(text("SELECT current_user"))).scalar_one() != "pg_monitor"


@pytest.mark.parametrize(
    "refused", ["SET TRANSACTION READ ONLY", "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", "DEALLOCATE ALL"]
)
async def test_what_cannot_be_undone_is_refused(database: Database, refused: str) -> None:
    """Innocent messages would fail afterwards."""
    store = SqlStore(database, "shop")
    unit = await store.begin([message()])
    with pytest.raises(RuntimeError, match="is not allowed in a handler"):
        await run(unit, [READ, refused])
    unit.abandon()
    other = await store.begin([message()])
    assert await what_is_raised(handle(other, [READ]), other) == ""


async def test_a_row_that_a_policy_refuses_is_a_constraint(place: str) -> None:
    """PostgreSQL has the code of a missing permission for it. No permission of the table would help."""
    if not place.startswith("postgresql"):
        pytest.skip("only PostgreSQL has row security")
    async with emptied(place) as database:
        unit = await SqlStore(database, "shop").begin([message()])
        connection = connection_of(unit.resources)
        for statement in (
            "CREATE TEMPORARY TABLE secured (tenant text) ON COMMIT DROP",
            "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
            "GRANT ALL ON secured TO pg_monitor",
            "CREATE POLICY own ON secured USING (tenant = 'a')",
            "SET LOCAL ROLE pg_monitor",
        ):
            await connection.execute(text(statement))
        with pytest.raises(DBAPIError) as failed:
            await connection.execute(text("INSERT INTO secured VALUES ('b')"))
        assert database.dialect.classify(failed.value) is DatabaseFailure.CONSTRAINT
        unit.abandon()
