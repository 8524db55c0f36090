"""What a transaction costs on the wire, counted exactly: PostgreSQL's and AMQP's own protocols, read by a proxy."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from benchmarks.counting import AMQPEars, PostgreSQLEars
from benchmarks.rows.onceonly import SHOP
from benchmarks.scenario import Order, OrderPlaced, PlaceOrder
from benchmarks.stages import database, rabbitmq
from benchmarks.transactions.places import TransactionsPlaces
from benchmarks.wire import proxied
from onceonly import Endpoint, Transaction
from tests.servers.available import POSTGRESQL, RABBITMQ, need

ORDERS = 5


class Counting:
    """A shop whose connections are counted, opened in this process; nothing runs in it that works by itself."""

    def __init__(self, shop: Endpoint, counted: Counter[str]) -> None:
        self.shop = shop
        self.counted = counted

    async def costs(self, *, publishes: bool = True, key: str = "") -> dict[str, float]:
        """Place some orders one after another; gives what each has cost, once what is kept ready is."""
        await self._place("first", publishes=publishes, key=key)
        self.counted.clear()
        for number in range(ORDERS):
            await self._place(f"{number}", publishes=publishes, key=key)
        return {name: count / ORDERS for name, count in self.counted.items() if count}

    async def _place(self, number: str, *, publishes: bool, key: str) -> None:
        async def place(tx: Transaction) -> dict[str, str]:
            tx.sql.add(Order(order_id=f"{key}{number}"))
            if publishes:
                tx.publish(OrderPlaced(number))
            return {"order_id": number}

        await self.shop.transact(place, idempotency_key=f"{key}{number}" if key else None)


@pytest.fixture
async def counting() -> AsyncIterator[Counting]:
    """Open it, in a database and behind a prefix of its own."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(database.opened(need(POSTGRESQL)))
        places = TransactionsPlaces(own, await stack.enter_async_context(rabbitmq.opened(need(RABBITMQ), own)))
        yield await stack.enter_async_context(_counting(places))


@asynccontextmanager
async def _counting(places: TransactionsPlaces) -> AsyncIterator[Counting]:
    counted = Counter[str]()
    async with (
        proxied(places.database, listen=lambda: PostgreSQLEars(counted)) as store,
        proxied(places.broker, listen=lambda: AMQPEars(counted)) as broker,
    ):
        shop = Endpoint(SHOP, store=store, transport=f"{broker}?prefix={places.prefix}")

        @shop.handler
        async def place_order(order: PlaceOrder) -> None:
            raise AssertionError(f"nobody sends {order}")

        async with shop.opened():
            yield Counting(shop, counted)


async def test_a_transaction_costs_three_round_trips_and_its_record_one(counting: Counting) -> None:
    """BEGIN; the flush; record, a look at the clock and COMMIT in one; and once it is published the record is deleted."""
    costs = await counting.costs()
    assert costs == {"statements": 4.0, "trips": 4.0, "publishes": 1.0, "confirms": 1.0}


async def test_a_clients_key_costs_no_round_trip(counting: Counting) -> None:
    """It goes with BEGIN, and its answer with COMMIT."""
    costs = await counting.costs(key="key-")
    assert costs == {"statements": 4.0, "trips": 4.0, "publishes": 1.0, "confirms": 1.0}


async def test_a_transaction_that_sends_nothing_costs_three_round_trips(counting: Counting) -> None:
    """There is no record to write or to delete."""
    assert await counting.costs(publishes=False) == {"statements": 3.0, "trips": 3.0}
