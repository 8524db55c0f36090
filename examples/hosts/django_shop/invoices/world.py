"""The world around the shop with invoices, which are counted instead of orders: an order that is there twice has two."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text

from examples.hosts.django_shop.world import ShopTables, ShopWire, database_of, environment_of, migrate
from examples.hosts.harness import Places, Written, opened_database

SETTINGS = "examples.hosts.django_shop.settings_invoices"
_INVOICES = text(
    "SELECT shop_order.order_id FROM invoices_invoice JOIN shop_order ON shop_order.id = invoices_invoice.order_id "
    "ORDER BY invoices_invoice.id"
)
_INCOMPLETE = text(
    "SELECT count(*) FROM shop_order WHERE NOT EXISTS (SELECT 1 FROM bookings WHERE number = shop_order.id) "
    "OR NOT EXISTS (SELECT 1 FROM invoices_invoice WHERE order_id = shop_order.id)"
)
_UNBILLED = text(
    "SELECT count(*) FROM shop_order WHERE NOT EXISTS (SELECT 1 FROM invoices_invoice WHERE order_id = shop_order.id)"
)


class InvoiceTables(ShopTables):
    """The tables of the shop, of its invoices, and of the other service."""

    async def read(self) -> Written:
        """Return the orders of the invoices, and count the orders without an invoice or an event of their own."""
        async with self.engine.connect() as connection:
            invoices = (await connection.execute(_INVOICES)).scalars().all()
            incomplete = (await connection.execute(_INCOMPLETE)).scalar_one()
        return Written(len(invoices), invoices, incomplete)


@asynccontextmanager
async def opened_invoices(places: Places, prefix: str) -> AsyncIterator[ShopTables]:
    """Make a database of this run, with the tables that `migrate` creates."""
    async with opened_database(places.postgresql, database_of(prefix)) as engine:
        found = InvoiceTables(engine)
        await migrate(environment_of(found.url, places.broker, prefix) | {"DJANGO_SETTINGS_MODULE": SETTINGS})
        yield found


class InvoiceWire(ShopWire):
    """The same clients and the same service. Orders without an invoice are waited for, too.

    `patience`: seconds without a change after which no more invoices are expected, for a program that may lose some.
    """

    def __init__(self, postgresql: str, broker: str, prefix: str, *, patience: float | None = None) -> None:
        super().__init__(postgresql, broker, prefix)
        self._patience = patience
        self._unbilled, self._since = 0, time.monotonic()

    async def waiting(self) -> int:
        """Count the requests without an answer, and the orders without an invoice."""
        async with self._engine.connect() as connection:
            unbilled: int = (await connection.execute(_UNBILLED)).scalar_one()
        if unbilled != self._unbilled:
            self._unbilled, self._since = unbilled, time.monotonic()
        is_over = self._patience is not None and time.monotonic() - self._since > self._patience
        return await super().waiting() + (0 if is_over else unbilled)

    async def clean(self) -> None:
        """Remove the queue of the tasks as well."""
        await self._channel.queue_delete(f"{self._prefix}tasks")
        await self._channel.exchange_delete(f"{self._prefix}tasks")
        await super().clean()
