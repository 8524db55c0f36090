"""A COMMIT to MariaDB that the server refuses when it comes too late."""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceonly.adapters.mariadb.connection import code_of
from onceonly.sql.dialect import Limit, TooLate

NOTE_START = "SET @onceonly_started = UTC_TIMESTAMP(6)"
# EXP(1000) is out of range. That is an error to SELECT, not a warning, and what is said behind it is not done.
_UNLESS_LATE = "SELECT EXP(IF(UTC_TIMESTAMP(6) > @onceonly_started + INTERVAL {} MICROSECOND, 1000, 0)); COMMIT"
_OUT_OF_RANGE = 1690


def commit_within(connection: Connection, limit: Limit) -> None:
    """Look at the server's clock and COMMIT, in one request, past SQLAlchemy: that would not read the second answer.

    Raises TooLate, DBAPIError.
    """
    from asyncmy.errors import MySQLError  # noqa: PLC0415 - a driver is imported when a URL names it

    words = _UNLESS_LATE.format(limit.milliseconds * 1000)
    adapted: Any = connection.connection.dbapi_connection
    try:
        adapted.run_async(lambda driver: _say(driver, words))
    except MySQLError as error:
        said = DBAPIError("COMMIT", None, error)
        if code_of(said) == _OUT_OF_RANGE:
            raise TooLate(f"not committed within {limit.milliseconds} ms of its start") from error
        raise said from error


async def _say(driver: Any, words: str) -> None:
    async with driver.cursor() as cursor:
        await cursor.execute(words)
        while await cursor.nextset():
            """The answer to COMMIT is the last one."""
