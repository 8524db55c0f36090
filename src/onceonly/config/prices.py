"""The price table of document services: a TOML file that users edit, and the example that comes with the library."""

import datetime as dt
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from onceonly.model.errors import SetupError

PRINT = "`onceonly plan --print-prices`"

Amount = Annotated[float, Meta(ge=0)]
Words = Annotated[str, Meta(min_length=1)]


class OperationPrice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a service charges for one operation on a document.

    `unit` is the name of what it counts, `price` that of a million units. A document counts in started blocks of `bytes`:
    `first` units for the first one, and `next` for each further one. With `bytes` 0 the size does not matter.
    """

    unit: Words
    price: Amount
    bytes: Annotated[int, Meta(ge=0)]
    first: Amount = 1.0
    next: Amount = 1.0

    def units(self, size: int) -> float:
        """Return the units for a document of this size. A document that does not exist has size 0."""
        blocks = math.ceil(size / self.bytes) if self.bytes else 1
        return self.first + self.next * max(0, blocks - 1)


class ServicePrices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of a service. `storage` is the price of 10^9 bytes for a month, `overhead` bytes for each document.

    `listing` are units of `write` for a message with effects, for the list of pending documents.
    """

    read: OperationPrice
    write: OperationPrice
    delete: OperationPrice
    storage: Amount
    overhead: Annotated[int, Meta(ge=0)] = 0
    listing: Amount = 0.0


class PriceTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of all services, by the schemes of their URLs, and the date on which they were written down."""

    currency: Words
    date: dt.date
    services: Mapping[str, ServicePrices]


class _PriceFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: Words
    date: dt.date
    services: dict[str, dict[str, Any]]


def example_prices() -> str:
    """Return the text of the example: a TOML file with comments."""
    return files("onceonly.config").joinpath("prices.toml").read_text(encoding="utf-8")


def read_prices(text: str, name: str) -> PriceTable:
    """Read a price table from the text of the file `name`. Raises SetupError, which names the place in the file."""
    try:
        stored = msgspec.toml.decode(text, type=_PriceFile)
    except msgspec.ValidationError as error:
        raise SetupError(f"{name} is not a price table: {error}. {PRINT} prints one") from error
    except msgspec.DecodeError as error:
        raise SetupError(f"{name} is not a TOML file: {error}. {PRINT} prints one") from error
    services = {scheme: _read_service(found, scheme, name) for scheme, found in stored.services.items()}
    return PriceTable(currency=stored.currency, date=stored.date, services=services)


def prices_of(table: PriceTable, scheme: str, name: str) -> ServicePrices:
    """Return the prices of a service, by the scheme of its URL. Raises SetupError if the table of the file has none."""
    found = table.services.get(scheme)
    if found is None:
        there = ", ".join(sorted(table.services)) or "none"
        raise SetupError(f"{name} has no prices for {scheme}://: add a table [services.{scheme}]. It has {there}")
    return found


def _read_service(found: dict[str, Any], scheme: str, name: str) -> ServicePrices:
    try:
        prices = msgspec.convert(found, ServicePrices)
    except msgspec.ValidationError as error:
        raise SetupError(f"{name}: table [services.{scheme}] is wrong: {error}. {PRINT} prints an example") from error
    for path, amount in _amounts(prices):
        if not math.isfinite(amount):
            raise SetupError(f"{name}: table [services.{scheme}] is wrong: {path} is {amount}, set it to a number of 0 or more")
    return prices


def _amounts(prices: ServicePrices) -> list[tuple[str, float]]:
    each = [
        (f"{name}.{field}", getattr(operation, field))
        for name, operation in (("read", prices.read), ("write", prices.write), ("delete", prices.delete))
        for field in ("price", "first", "next")
    ]
    return [*each, ("storage", prices.storage), ("listing", prices.listing)]
