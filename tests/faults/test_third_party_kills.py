"""A service that is not ours, called by processes that are killed: charged once, followed up once, or counted as unknown."""

import asyncio
import itertools
import json
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from onceonly import Response
from onceonly.testing import Fault, StandInApi, StandInRequest
from tests.endpoint.http_services import PATIENCE, ROOT, until
from tests.faults.third_party_program import Order, prepare, rows, shop
from tests.killed_processes import python_process
from tests.servers.available import MEASURED, free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ORDERS = 40
POINTS = (
    "before-response",
    "after-response",
    "before-commit",
    "after-commit",
    "before-dispatch",
    "after-dispatch",
    "after-forget",
    "before-begin",
    "after-begin",
    "after-ack",
)
FAULTS = (None, Fault.FAILS, Fault.FAILS_AFTER, None, Fault.IN_FLIGHT, Fault.DIES, Fault.LATE, Fault.RATE_LIMITED)


def charge(request: StandInRequest) -> Response:
    """Answer with what was charged."""
    return Response(body=json.dumps({"charged": json.loads(request.body)["name"]}).encode())


@asynccontextmanager
async def serving(api: StandInApi) -> AsyncIterator[str]:
    """Serve the API; gives its URL."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(api, host="127.0.0.1", port=port, lifespan="off", log_level="critical"))
    task = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = server.force_exit = True
        await task


def process(folder: Path, url: str, style: str, point: str = "") -> AbstractAsyncContextManager[Process]:
    """Run the endpoint in a process of its own; kill it at the end."""
    return python_process("tests.faults.third_party_program", str(folder), url, style, point, cwd=ROOT)


async def send(folder: Path, url: str, style: str, names: list[str]) -> None:
    """Send orders from outside."""
    endpoint = shop(folder, url, style)
    async with endpoint.opened():
        for name in names:
            async with endpoint.transaction() as tx:
                tx.send(Order(name), to="shop")


def charged(api: StandInApi) -> Counter[str]:
    """Count what was executed, by order."""
    return Counter(json.loads(request.body)["name"] for request in api.executed)


async def run_under_kills(folder: Path, url: str, style: str, *, points: Sequence[str], orders: int) -> list[str]:
    """Have orders charged by processes each of which dies at the next of these crash points; returns the names."""
    prepare(folder)
    names = [f"order-{number:02}" for number in range(orders)]
    for number, point in enumerate(points):
        await send(folder, url, style, names[number :: len(points)])
        async with process(folder, url, style, point) as dying, asyncio.timeout(PATIENCE):
            assert await dying.wait() == -9, "it never came to that point"
    async with process(folder, url, style):
        await until(lambda: len(rows(folder, "charged")) >= orders, patience=4 * PATIENCE)
    return names


async def test_each_order_is_charged_once_under_kills(tmp_path: Path) -> None:
    """While the API fails, is late, and dies after it has executed a request."""
    api = StandInApi(charge, faults=itertools.cycle(FAULTS), late=2.0)
    async with serving(api) as url:
        names = await run_under_kills(tmp_path, url, "keys", points=POINTS * 2, orders=ORDERS)
    counted = charged(api)
    lost, doubled = set(names) - set(counted), [name for name, times in counted.items() if times > 1]
    MEASURED.append(
        f"an API of somebody else's, {2 * len(POINTS)} kills: {len(api.received)} requests, {len(api.executed)} executed, "
        f"{len(lost)} lost, {len(doubled)} charged twice"
    )
    assert (lost, doubled) == (set(), [])
    assert rows(tmp_path, "orders") == rows(tmp_path, "charged") == names


async def test_without_keys_some_are_charged_twice(tmp_path: Path) -> None:
    """The control run: `AtLeastOnce` loses nothing, and promises no more."""
    api = StandInApi(charge)
    async with serving(api) as url:
        names = await run_under_kills(tmp_path, url, "plain", points=("before-commit", "after-response"), orders=2)
    counted = charged(api)
    assert set(counted) == set(names)
    assert max(counted.values()) > 1
    assert rows(tmp_path, "charged") == names
