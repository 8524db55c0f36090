"""The dialect of SQLAlchemy: SQLite's, under a name that this library has no rules for."""

from typing import Any

from sqlalchemy.dialects.sqlite.aiosqlite import SQLiteDialect_aiosqlite
from sqlalchemy.ext.compiler import compiles

from onceonly.sql.dialect import ClaimKey, DatabaseNow, RowNumber, StatementNow

NAME = "toysql"


class ToySqlEngineDialect(SQLiteDialect_aiosqlite):
    """What `create_async_engine("toysql:///...")` uses."""

    name = NAME
    supports_statement_cache = True


@compiles(DatabaseNow, NAME)
@compiles(StatementNow, NAME)
def _now(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"


@compiles(RowNumber, NAME)
def _row_number(*_: Any, **__: Any) -> str:
    """Only an INTEGER PRIMARY KEY counts up by itself."""
    return "INTEGER"


@compiles(ClaimKey, NAME)
def _claim_key(*_: Any, **__: Any) -> str:
    return "BLOB"
