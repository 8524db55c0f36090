"""The shop's tests: handlers at every crash point, and requests that come more than once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import func, select

from examples.shop.app import app
from examples.shop.orders import Invoice, Order, OrderBilled, OrderPlaced, Parcel, engine, sessions, shop
from onceonly import testing
from onceonly.integrations.fastapi import lifespan


async def test_an_order_is_billed_and_shipped_once_wherever_the_process_dies(onceonly_crash_point: str) -> None:
    """Announced twice, too."""
    async with testing.run(shop) as t:
        async with t.session() as session:
            session.add(Order(id=1, item="tea", quantity=2))
        await t.deliver(OrderPlaced(1), copies=2, crash_at=onceonly_crash_point)
        t.clock.advance(1)
        await t.settle()
        assert t.sent == [OrderBilled(1)]
        async with t.session() as session:
            assert [await session.scalar(select(func.count()).select_from(table)) for table in (Invoice, Parcel)] == [1, 1]
            assert (await session.get_one(Order, 1)).state == "shipped"


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """Serve the application in an empty folder."""
    monkeypatch.chdir(tmp_path)
    transport = ASGITransport(app)
    async with lifespan(shop, worker=True)(app), AsyncClient(transport=transport, base_url="http://shop") as client:
        yield client
    await engine.dispose()


TEA = {"item": "tea", "quantity": 2}


async def test_an_order_goes_all_its_way(client: AsyncClient) -> None:
    """Ordered, billed, shipped."""
    answer = await client.post("/orders", json=TEA, headers={"Idempotency-Key": '"k-1"'})
    assert (answer.status_code, answer.json()) == (201, {**TEA, "id": 1, "state": "ordered"})
    while (await client.get("/orders")).json() != [{**TEA, "id": 1, "state": "shipped"}]:
        pass


async def test_a_repeated_request_is_one_order(client: AsyncClient) -> None:
    """And gets one answer."""
    answers = [await client.post("/orders", json=TEA, headers={"Idempotency-Key": '"k-1"'}) for _ in range(3)]
    assert {answer.content for answer in answers} == {answers[0].content}
    async with sessions() as session:
        assert await session.scalar(select(func.count()).select_from(Order)) == 1


async def test_a_request_without_a_key_is_refused(client: AsyncClient) -> None:
    """With words that say what to send."""
    answer = await client.post("/orders", json=TEA)
    assert (answer.status_code, answer.json()["code"]) == (400, "key-missing")


@pytest.mark.parametrize("wrong", [{"item": "gold", "quantity": 1}, {"item": "tea", "quantity": 0}, {"item": "tea"}])
async def test_an_order_that_cannot_be_is_refused_and_its_key_is_free(client: AsyncClient, wrong: dict[str, object]) -> None:
    """The customer mends the order, and asks with the same key."""
    statuses = [
        (await client.post("/orders", json=order, headers={"Idempotency-Key": '"k-1"'})).status_code for order in (wrong, TEA)
    ]
    assert statuses == [422, 201]


async def test_the_page_is_there(client: AsyncClient) -> None:
    """With all its parts, from nowhere else."""
    assert "Every order, exactly once" in (await client.get("/")).text
    for part in ("page.js", "page.css"):
        assert (await client.get(f"/page/{part}")).status_code == 200
