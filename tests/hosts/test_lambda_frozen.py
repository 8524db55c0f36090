"""A function that Lambda freezes in the middle of an invocation, and thaws after another process has handled its message."""

import asyncio
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from msgspec import Struct
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts import lambda_runtime
from examples.hosts.lambda_runtime import Sandbox
from onceonly import Context, Endpoint
from onceonly.adapters.aws.dynamodb.documents import create
from onceonly.algorithms import outbox
from onceonly.assembly import open_database
from onceonly.assembly.documents import open_documents
from onceonly.config.deduplication import Off
from onceonly.integrations.aws_lambda import sqs_handler
from onceonly.runtime.environment import LIVE
from onceonly.sql.schema import create as create_schema
from onceonly.sql.store import SCHEMA
from tests.endpoint.hosted_harness import Base, Line, Placed, declare_listener, received, rows
from tests.integrations.lambda_harness import QUEUE
from tests.servers.available import postgresql_database

Moment = Literal["before the commit", "after the commit"]
BEFORE, AFTER = "before the commit", "after the commit"
GLANCE_SECONDS = 0.02
_END_BLOCKING = text(
    "SELECT pg_terminate_backend(blocking) FROM pg_stat_activity, unnest(pg_blocking_pids(pid)) AS blocking"
    " WHERE datname = current_database()"
)


class PlaceOrder(Struct):
    """A command."""

    order_id: str


class Account(Struct):
    """An entity."""

    order_id: str = ""
    balance: int = 0


class FreezingShop:
    """An endpoint whose handlers stop their process once, at a moment that only the first sandbox sets."""

    def __init__(self, store: str, folder: Path, **settings: Any) -> None:
        self.store, self.queue = store, f"sqlite:///{folder}/queue.db"
        self.moment = ""
        self.endpoint = Endpoint("shop", store=store, transport=self.queue, **settings)
        self.handler = sqs_handler(self.endpoint)
        asyncio.run(declare_listener(self.queue))

    def freeze(self, moment: Moment) -> None:
        """Stop this process here, as Lambda does, if this is the moment."""
        if self.moment == moment:
            self.moment = ""
            os.kill(os.getpid(), signal.SIGSTOP)

    def frozen(self, moment: Moment) -> Callable[[Mapping[str, Any], Any], object]:
        """Return the handler of the sandbox that is frozen."""
        dispatch = outbox.dispatch

        async def dispatch_later(*arguments: Any) -> Any:
            self.freeze(AFTER)
            return await dispatch(*arguments)

        def handler(event: Mapping[str, Any], context: Any) -> object:
            self.moment, outbox.dispatch = moment, dispatch_later
            return self.handler(event, context)

        return handler

    def sent(self) -> list[str]:
        """Return the ids of the events that were sent."""
        return asyncio.run(received(self.queue))

    def effects(self) -> int:
        """Count how often the order took effect."""
        raise NotImplementedError


class ShopWithRows(FreezingShop):
    """One on PostgreSQL, which writes a row for each run."""

    def __init__(self, store: str, folder: Path, **settings: Any) -> None:
        super().__init__(store, folder, metadata=Base.metadata, **settings)

        @self.endpoint.handler
        async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
            session.add(Line(what=order.order_id))
            await session.flush()
            context.publish(Placed(order.order_id))
            self.freeze(BEFORE)

        asyncio.run(create_tables(store))

    def effects(self) -> int:
        """Count the rows."""
        return len(asyncio.run(rows(self.store)))

    async def end_frozen_transaction(self, other: Sandbox) -> None:
        """End the transaction of the frozen sandbox when another one waits for it, as the server's time-out does.

        Each look has a transaction of its own: `pg_stat_activity` does not change within one.
        """
        async with open_database(self.store) as database:
            while True:
                assert not select.select([other.answers], [], [], 0)[0], "it has not waited"
                async with database.writing() as connection:
                    if (await connection.execute(_END_BLOCKING)).all():
                        return
                await asyncio.sleep(GLANCE_SECONDS)


class ShopWithEntities(FreezingShop):
    """One on DynamoDB, which changes an entity in each run."""

    def __init__(self, store: str, folder: Path) -> None:
        super().__init__(store, folder)
        asyncio.run(create(store))

        @self.endpoint.handler(entity=Account, key="order_id")
        async def place(order: PlaceOrder, account: Account, context: Context) -> None:
            account.balance += 1
            context.publish(Placed(order.order_id))
            self.freeze(BEFORE)

    def effects(self) -> int:
        """Return the balance."""

        async def read() -> bytes:
            async with open_documents(self.store, clock=LIVE.clock) as documents:
                (found,) = (await documents.load(["entity/Account/a"])).values()
                return found.body

        return int(json.loads(asyncio.run(read()))["state"]["balance"])


def message(deliveries: int) -> dict[str, Any]:
    """Return a delivery of one message."""
    attributes = {"ApproximateReceiveCount": f"{deliveries}"}
    return {"MessageId": "a", "ReceiptHandle": f"{deliveries}", "Body": '{"order_id": "a"}', "Attributes": attributes}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no invocation end by its time."""
    monkeypatch.setattr(lambda_runtime, "TIMEOUT_SECONDS", 300.0)


@pytest.fixture
def shop(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FreezingShop]:
    """Make an endpoint on a kind of store."""
    if store == "postgresql":
        with postgresql_database() as url:
            yield ShopWithRows(url, tmp_path)
        return
    endpoint = request.getfixturevalue("ministack_endpoint")
    yield ShopWithEntities(f"dynamodb://test:test@eu-central-1/t{uuid4().hex[:12]}?endpoint={endpoint}", tmp_path)


async def create_tables(store: str) -> None:
    """Create the tables of the endpoint and of the application."""
    async with open_database(store) as database:
        await create_schema(database, SCHEMA)
        async with database.writing() as connection:
            await connection.run_sync(Base.metadata.create_all)


def run_past_a_frozen_one(shop: FreezingShop, moment: Moment) -> None:
    """Freeze a sandbox at a moment, handle its message in another one, and thaw it."""
    first, second = Sandbox(shop.frozen(moment)), Sandbox(shop.handler)
    try:
        first.invoke([message(1)], QUEUE)
        _, status = os.waitpid(first.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert not select.select([first.answers], [], [], 0)[0]
        assert not shop.sent()
        second.invoke([message(2)], QUEUE)
        if moment == BEFORE and isinstance(shop, ShopWithRows):
            asyncio.run(shop.end_frozen_transaction(second))
        done = second.answer()
        assert done is not None
        assert [each["MessageId"] for each in done] == ["a"]
        os.kill(first.pid, signal.SIGCONT)
        assert first.answer() is not None
    finally:
        first.end()
        second.end()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("store", "moment"),
    [
        ("postgresql", BEFORE),
        ("dynamodb", BEFORE),
        ("dynamodb", AFTER),
        pytest.param("postgresql", AFTER, marks=pytest.mark.slow),
    ],
)
def test_a_frozen_invocation_that_thaws_doubles_and_loses_nothing(shop: FreezingShop, moment: Moment) -> None:
    """Its message was delivered again, and another process has handled it."""
    run_past_a_frozen_one(shop, moment)
    assert shop.effects() == 1
    assert len(set(shop.sent())) == 1


@pytest.mark.usefixtures("patient")
def test_without_deduplication_a_frozen_invocation_doubles(tmp_path: Path) -> None:
    """So the test above can fail."""
    with postgresql_database() as url:
        shop = ShopWithRows(url, tmp_path, deduplication=Off())
        run_past_a_frozen_one(shop, AFTER)
        assert shop.effects() == 2
