"""The store of a Django endpoint as a subject: units work on Django's connection, and all else on the store's own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Self

from onceonly.ports.store import Resources
from onceonly.sql.database import place_of
from onceonly.sql.store import SqlStore
from onceonly_conformance.on_sql import ForgettingSqlSubject, SqlRingSubject
from onceonly_conformance.suite import ENDPOINT
from tests.conformance.sql_subjects import SqlSubject
from tests.conformance.test_mariadb import MariaDBSubject
from tests.django_project import set_up

set_up()

from django.db import connections, transaction  # noqa: E402 - Django is set up before

from onceonly.integrations.django.units import DjangoUnits  # noqa: E402 - the same

LATE = "INSERT INTO deferred (key, of) VALUES ('x', 'no such key')"


class DjangoSubject(SqlSubject):
    """A store whose handlers use Django's cursor, as the ORM does. Its tables are those of the SQL subjects."""

    kind: ClassVar[type[DjangoUnits]] = DjangoUnits

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Any) -> AsyncIterator[Self]:
        """Open it, and end its threads."""
        async with super().open(place) as subject:
            subject.units = []
            try:
                yield subject
            finally:
                for units in subject.units:
                    await units.home.threads.close()

    alias: str
    """Of the same database, in Django."""
    units: list[DjangoUnits]

    def on_django(self, store: SqlStore, endpoint: str = ENDPOINT) -> SqlStore:
        """Have the units of a store work on Django's connection."""
        self.units.append(self.kind(endpoint, self.alias, place_of(self.url)))
        return store.working_on(self.units[-1])

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        return self.on_django(await super().store(endpoint), endpoint)

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Insert a row, as a `def` handler does."""
        await resources.run_sync(lambda get: self.write_now(get, key, value))

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Insert a row by Django's cursor."""
        quote = connections[self.alias].ops.quote_name
        with connections[self.alias].cursor() as cursor:
            cursor.execute(f"INSERT INTO traces ({quote('key')}, {quote('value')}) VALUES (%s, %s)", [key, value])  # noqa: S608

    async def refuse(self, resources: Resources) -> None:
        """Break a constraint that is checked at commit only."""
        await resources.run_sync(lambda _get: self._execute(LATE))

    def _execute(self, statement: str) -> None:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement)


class DjangoOnMariaDB(DjangoSubject, MariaDBSubject):
    """MariaDB has no constraint that only COMMIT checks."""

    async def refuse(self, resources: Resources) -> None:
        """Ask Django to roll back, as Django itself does after an error that the handler swallows."""
        await resources.run_sync(lambda _get: transaction.set_rollback(True, using=self.alias))


class ForgettingDjango(ForgettingSqlSubject, DjangoSubject):
    """A store that another system remembers for."""


class DjangoRings(DjangoSubject, SqlRingSubject):
    """A store that forgets soon, by the subject's clock."""

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        return self.on_django(await SqlRingSubject.store(self, endpoint), endpoint)
