"""The store of a Django endpoint keeps every promise of the store, with units on Django's own connection."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import pytest

from onceonly.sql.store.statements import KEYS_AT_ONCE
from onceonly_conformance.forgetful_suite import ForgetfulRecordsSuite, ForgetfulStoreSuite
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.store_suite import StoreSuite
from tests.conformance.django_subjects import DjangoOnMariaDB, DjangoRings, DjangoSubject, ForgettingDjango
from tests.conformance.sql_subjects import make_tables
from tests.conformance.test_mariadb import make_tables as make_mariadb_tables
from tests.django_project import alias_of
from tests.servers.available import mariadb_database, postgresql_database


class OnPlace:
    """What needs empty tables for each test."""

    many: ClassVar[int] = KEYS_AT_ONCE + 3
    kind: ClassVar[type[DjangoSubject]] = DjangoSubject

    @pytest.fixture(autouse=True)
    def _place(self, url: str) -> Iterator[None]:
        self.url = url
        with alias_of(f"suite_{uuid4().hex[:8]}", url) as self.alias:
            yield

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[DjangoSubject]:
        """Open the database, and empty its tables."""
        async with self.kind.open(self.url) as subject:
            subject.alias = self.alias
            await subject.empty()
            yield subject


class OnSQLite(OnPlace):
    """In a file."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """Make the tables in a file."""
        url = f"sqlite:///{tmp_path / 'django.db'}"
        asyncio.run(make_tables(url))
        return url


@pytest.fixture(scope="module")
def on_postgresql() -> Iterator[str]:
    """Make the tables in a database of this module."""
    with postgresql_database() as url:
        asyncio.run(make_tables(url))
        yield url


@pytest.fixture(scope="module")
def on_mariadb() -> Iterator[str]:
    """Make the tables in a database of this module."""
    with mariadb_database() as url:
        asyncio.run(make_mariadb_tables(url))
        yield url


class OnPostgreSQL(OnPlace):
    """On the server."""

    @pytest.fixture
    def url(self, on_postgresql: str) -> str:
        """Return where the tables are."""
        return on_postgresql


class OnMariaDB(OnPlace):
    """On the server, which has no constraints that only COMMIT checks."""

    kind = DjangoOnMariaDB

    @pytest.fixture
    def url(self, on_mariadb: str) -> str:
        """Return where the tables are."""
        return on_mariadb


class TestDjangoOnSQLite(OnSQLite, StoreSuite, PendingRecordsSuite):
    """Rows, claims and records in a file."""

    open_store = OnPlace.opened


@pytest.mark.slow
class TestDjangoOnPostgreSQL(OnPostgreSQL, StoreSuite, PendingRecordsSuite):
    """Rows, claims and records in PostgreSQL."""

    open_store = OnPlace.opened


@pytest.mark.slow
class TestDjangoOnMariaDB(OnMariaDB, StoreSuite, PendingRecordsSuite):
    """Rows, claims and records in MariaDB."""

    open_store = OnPlace.opened


class TestForgettingDjangoOnSQLite(OnSQLite, ForgetfulRecordsSuite, ForgetfulStoreSuite):
    """A store that another system remembers for."""

    kind = ForgettingDjango
    open_forgetful_store = open_store = OnPlace.opened


@pytest.mark.slow
class TestDjangoRingOnPostgreSQL(OnPostgreSQL, RingSuite):
    """Claims that are forgotten in time."""

    kind = DjangoRings
    open_ring = OnPlace.opened
