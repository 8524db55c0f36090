"""Units of work on Django's own connection: claim, rows of the ORM and records are one commit of `transaction.atomic()`.

Each unit has a thread for its lifetime, and all that it does happens there. So a handler finds Django's connections as in any
other thread. The store's own statements are executed on the same connection; see `borrowed`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.integrations.django.unit_resources import DjangoResources
from onceonly.integrations.django.unit_threads import UnitThreads
from onceonly.integrations.django.unit_transactions import DjangoTransaction, UnitHome
from onceonly.model.entities import Entities
from onceonly.model.errors import SetupError
from onceonly.sql.dialect import Purpose
from onceonly.sql.urls import DatabaseAddress


class DjangoUnits:
    """Opens the units of an endpoint in threads. It is a `UnitOpener`."""

    def __init__(self, endpoint: str, alias: str, place: DatabaseAddress) -> None:
        self.home = UnitHome(endpoint, alias, place, UnitThreads())

    async def open(self, _purpose: Purpose, _isolation: str | None) -> DjangoTransaction:
        """Return a transaction, which begins with what is called first in it: a step to its thread is expensive.

        Its isolation level is that of Django's connection.
        """
        return DjangoTransaction(self.home, self.home.threads.take())

    def resources(
        self, transaction: DjangoTransaction, _entities: Entities, *, isolated: bool, messages: int
    ) -> DjangoResources:
        """Return what stands for the resources of a handler, which asks for none."""
        return DjangoResources(transaction, isolated=isolated)


@asynccontextmanager
async def open_units(endpoint: str, alias: str, place: DatabaseAddress) -> AsyncIterator[DjangoUnits]:
    """Open the units of an endpoint. At the end its threads end, which close their connections. Raises SetupError."""
    if place.url.get_backend_name() == "sqlite" and place.url.database in {None, "", ":memory:"}:
        raise SetupError(
            f"database {alias!r} is in memory, so endpoint {endpoint!r} would not find what its handlers have committed: name "
            'a file. In tests, set "TEST": {"NAME": "test.sqlite3"} of the database'
        )
    units = DjangoUnits(endpoint, alias, place)
    try:
        yield units
    finally:
        await units.home.threads.close()
