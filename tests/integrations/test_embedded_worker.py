"""A worker inside a web application: what its handlers raise is for the log, and for no client."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI

from onceonly import Endpoint, Retry
from onceonly.integrations.fastapi import IdempotentRoute, Tx, lifespan
from tests.log_events import event_in


@dataclass
class Placed:
    """What requests publish."""

    number: int


class Told(logging.Handler):
    """Waits for an event of the log."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self._event = event
        self.record: asyncio.Future[logging.LogRecord] = asyncio.get_running_loop().create_future()

    def emit(self, record: logging.LogRecord) -> None:
        """Take the first one."""
        if event_in(record) == self._event and not self.record.done():
            self.record.set_result(record)


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    """Watch for the first failure of a message."""
    handler, logger = Told("message failed, will be retried"), logging.getLogger("onceonly")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_a_failing_handler_is_shown_to_no_client(tmp_path: Path, told: Told) -> None:
    """Neither to the one that sent the message, nor to the others. The log has the error and its traceback."""
    shop = Endpoint(
        "shop", store=f"sqlite:///{tmp_path}/shop.db", transport=f"sqlite:///{tmp_path}/q.db", retry=Retry(immediate=0)
    )

    @shop.handler
    async def fail(placed: Placed) -> None:
        raise ValueError(f"secret {placed.number}")

    app = FastAPI(lifespan=lifespan(shop, worker=True))
    orders = APIRouter(route_class=IdempotentRoute.of(shop))

    @orders.post("/orders", status_code=201)
    async def place(tx: Tx) -> dict[str, int]:
        tx.publish(Placed(7))
        return {"placed": 7}

    @app.get("/look")
    async def look() -> str:
        return "seen"

    app.include_router(orders)
    wire: Any = httpx.ASGITransport(app)  # raises what the application raises
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=wire, base_url="http://shop") as client:
        first = await client.post("/orders", headers={"Idempotency-Key": '"k"'})
        async with asyncio.timeout(60):
            record = await told.record
        answers = [first, await client.post("/orders", headers={"Idempotency-Key": '"k"'}), await client.get("/look")]
    assert [each.status_code for each in answers] == [201, 201, 200]
    assert "secret" not in "".join(f"{each.headers} {each.text}" for each in answers)
    assert vars(record)["reason"] == "ValueError: secret 7"
    assert "in fail" in vars(record)["traceback"]
