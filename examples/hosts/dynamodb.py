"""DynamoDB as the world around an application sees it: accounts with a balance, and with the orders that they were paid."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from aiobotocore.session import get_session  # type: ignore[import-untyped]

from examples.hosts.harness import Host, Places, Written, created_tables
from examples.hosts.sqs import KEY, REGION, SECRET

ACCOUNTS = "accounts"
"""The end of the name of the application's own table, with one item for each account. The program `control` has it."""


class Accounts(NamedTuple):
    """Two tables of one run: one for the documents of onceonly, and one for an application without it."""

    client: Any
    endpoint: str
    prefix: str

    @property
    def url(self) -> str:
        """The table of documents."""
        return f"dynamodb://{KEY}:{SECRET}@{REGION}/{self.prefix}documents?endpoint={self.endpoint}"

    async def prepare(self, host: Host, environment: Mapping[str, str]) -> None:
        """Create the table of documents."""
        await created_tables(host.endpoint, environment)

    async def read(self) -> Written:
        """Return the sum of the balances, and the orders of all accounts."""
        found = [account async for account in self._accounts()]
        return Written(sum(int(each["balance"]) for each in found), [order_id for each in found for order_id in each["orders"]])

    async def _accounts(self) -> AsyncIterator[Mapping[str, Any]]:
        async for item in self._items(ACCOUNTS):
            yield {"balance": item["balance"]["N"], "orders": [each["S"] for each in item["orders"]["L"]]}
        async for item in self._items("documents"):
            for document in _documents(item):
                if isinstance(document.get("state"), dict):
                    yield document["state"]

    async def _items(self, name: str) -> AsyncIterator[Mapping[str, Any]]:
        table = f"{self.prefix}{name}"
        with suppress(self.client.exceptions.ResourceNotFoundException):  # the other program's
            async for page in self.client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
                for item in page["Items"]:
                    yield item

    async def create(self) -> None:
        """Create the application's own table."""
        await self.client.create_table(
            TableName=f"{self.prefix}{ACCOUNTS}",
            KeySchema=[{"AttributeName": "account", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "account", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )

    async def clean(self) -> None:
        """Delete both tables."""
        for name in (ACCOUNTS, "documents"):
            with suppress(self.client.exceptions.ResourceNotFoundException):
                await self.client.delete_table(TableName=f"{self.prefix}{name}")


def _documents(item: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the document of an item, which is JSON in a text."""
    for attribute in item.values():
        if attribute.get("S", "").startswith("{"):
            yield json.loads(attribute["S"])


@asynccontextmanager
async def opened_accounts(places: Places, prefix: str) -> AsyncIterator[Accounts]:
    """Make the tables of this run, at the endpoint of the broker."""
    connecting = get_session().create_client(
        "dynamodb", region_name=REGION, endpoint_url=places.broker, aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
    async with connecting as client:
        accounts = Accounts(client, places.broker, prefix)
        await accounts.create()
        try:
            yield accounts
        finally:
            await accounts.clean()
