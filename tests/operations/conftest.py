"""The SQL databases that operators read."""

from tests.sql.conftest import place, server
from tests.sql.sqlite_fixtures import file

__all__ = ["file", "place", "server"]
