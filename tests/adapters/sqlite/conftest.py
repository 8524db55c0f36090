"""One new file for each test, with all tables."""

from tests.sql.sqlite_fixtures import database, file, store

__all__ = ["database", "file", "store"]
