"""The chain: a shop's sale, taken by the first endpoint, becomes an event that the second one takes. Both work on entities."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from onceonly import Context, Endpoint, Tokens, WorkerSettings
from onceonly.model.message import Message

TILL, LEDGER = "till", "ledger"
SHOPS, REGIONS = 36, 24
SINCE = 10**12
"""Where numbers in entities begin, so that their text never gets longer: what grows then is not the business's own."""
SWEEP_AFTER = timedelta(minutes=2)
SOURCE = "benchmarks/tokens"


@dataclass
class Sale:
    """A message from outside: numbers are 1, 2, 3 and so on."""

    shop: str
    number: int


@dataclass
class Sold:
    """What the first endpoint says to the second."""

    region: str
    number: int


@dataclass
class Shop:
    """How many sales there were, and the sum of their numbers."""

    shop: str
    count: int = SINCE
    total: int = SINCE


@dataclass
class Region:
    """The same, as the events tell it."""

    region: str
    count: int = SINCE
    total: int = SINCE


KINDS = {TILL: Shop.__name__, LEDGER: Region.__name__}
"""Whose entities are of which class."""


def endpoints(store: str, tokens: str, transport: str, worker: WorkerSettings) -> tuple[Endpoint, Endpoint]:
    """Make both endpoints; without `tokens` these are in the store's own database."""
    chosen = Tokens(tokens, subscribers={Sold.__name__: [LEDGER]}, sweep_after=SWEEP_AFTER)
    till = Endpoint(TILL, store=store, transport=transport, deduplication=chosen, worker=worker)
    ledger = Endpoint(LEDGER, store=store, transport=transport, deduplication=chosen, worker=worker)

    @till.handler(entity=Shop, key="shop")
    async def sell(sale: Sale, shop: Shop, context: Context) -> None:
        shop.count += 1
        shop.total += sale.number
        context.publish(Sold(f"region-{sale.number % REGIONS:02}", sale.number))

    @ledger.handler(entity=Region, key="region")
    async def enter(sold: Sold, region: Region) -> None:
        region.count += 1
        region.total += sold.number

    return till, ledger


def sales(numbers: Sequence[int]) -> list[Message]:
    """Make messages from outside, without tokens."""
    encode = msgspec.json.encode
    bodies = [(number, encode(Sale(f"shop-{number % SHOPS:02}", number))) for number in numbers]
    return [Message(id=f"sale-{number}", source=SOURCE, type=Sale.__name__, body=body) for number, body in bodies]
