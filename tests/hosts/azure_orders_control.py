"""The same without onceonly, on Cosmos DB: each order is an item that counts its changes, and an event by an output binding."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

import azure.functions as func
from azure.cosmos.aio import ContainerProxy, CosmosClient
from azure.cosmos.exceptions import CosmosHttpResponseError

from examples.hosts.program import STORE

app = func.FunctionApp()


def client_of(store: str) -> CosmosClient:
    """Return a client of the account that a URL names."""
    url = urlsplit(store)
    place, key = f"https://{url.hostname}:{url.port}/", url.password or ""
    return CosmosClient(place, key, connection_verify=False, enable_endpoint_discovery=False)


def named(client: CosmosClient, store: str) -> ContainerProxy:
    """Return the container that a URL names."""
    database, name = urlsplit(store).path.strip("/").split("/")
    return client.get_database_client(database).get_container_client(name)


@cache
def container() -> ContainerProxy:
    """Return the container, in the loop of the first call."""
    return named(client_of(STORE), STORE)


@asynccontextmanager
async def container_of(store: str) -> AsyncIterator[ContainerProxy]:
    """Open a container."""
    async with client_of(store) as client:
        yield named(client, store)


async def count(name: str) -> None:
    """Count one more time."""
    id_ = quote(name, safe="")
    try:
        item: dict[str, Any] = await container().read_item(id_, id_)
    except CosmosHttpResponseError:  # it is missing; the emulator has no status for that
        await container().create_item({"id": id_, "name": name, "times": 1})
    else:
        await container().replace_item(id_, {**item, "times": item["times"] + 1})
    os.write(1, f"{name}\n".encode())


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@app.service_bus_queue_output(arg_name="$return", queue_name="order-placed", connection="SERVICE_BUS")
async def place_order(message: func.ServiceBusMessage) -> str:
    """Count the order and announce it."""
    order_id = json.loads(message.get_body())["order_id"]
    await count(order_id)
    return json.dumps({"order_id": order_id})


@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:01")
@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
async def count_orders(timer: func.TimerRequest) -> None:
    """Count the tick."""
    await count(f"tick {timer.schedule_status['Next']}")
