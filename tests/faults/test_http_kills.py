"""Two services in processes of their own, either of them killed in the middle: each order is charged once, and settled once."""

import asyncio
from pathlib import Path

import pytest

from tests.endpoint.http_services import PATIENCE, Books, Order, PlainOrder, books, prepare, process, shop, until
from tests.servers.available import free_port

CALLER = ("after-create", "after-commit", "after-response")
CALLEE = ("after-commit", "after-request-bury")
ORDERS, KILLS = 24, 4
LASTS = 70.0
"""Seconds for which a run alone may still be in progress: a message that was killed in one waits for so long."""


async def send(folder: Path, port: int, *orders: object) -> None:
    """Send orders to the shop, from outside."""
    endpoint = shop(folder, port)
    async with endpoint.opened():
        for order in orders:
            async with endpoint.transaction() as tx:
                tx.send(order, to="shop")


async def settled(folder: Path, count: int, *, waiting: int = 0, patience: float = PATIENCE) -> Books:
    """Wait until so many orders are settled and noted, and what was asked is deleted."""

    def are_settled() -> bool:
        found = books(folder)
        poor = sum(name.startswith("poor") for name in found.settled)
        return len(found.settled) >= count and found.waiting <= waiting and len(found.ledger) >= count - poor

    await until(are_settled, patience=patience)
    return books(folder)


@pytest.mark.slow
@pytest.mark.parametrize("point", CALLER)
async def test_an_order_is_charged_once_when_the_caller_dies(point: str, tmp_path: Path) -> None:
    """Crash here: 1 at any port call, 2 the message comes again, 3 the other side is asked again, or deletes."""
    prepare(tmp_path)
    port = free_port()
    async with process("payments", tmp_path, port):
        async with process("shop", tmp_path, port, point) as dying:
            await send(tmp_path, port, Order("a"), Order("poor"))
            async with asyncio.timeout(PATIENCE):
                assert await dying.wait() == -9, "it never came to that point"
        async with process("shop", tmp_path, port):
            waiting = 2 if point == "after-create" else 0  # what that attempt asked for waits for the sweeper
            found = await settled(tmp_path, 2, waiting=waiting)
    assert found.orders == found.settled == {"a": 1, "poor": 1}
    assert found.charges == found.ledger == {"a": 1}


@pytest.mark.slow
@pytest.mark.parametrize("point", CALLEE)
async def test_an_order_is_charged_once_when_the_other_service_dies(point: str, tmp_path: Path) -> None:
    """Crash here: 1 at any port call, 2 the caller has no answer, 3 it asks again when the service is back."""
    prepare(tmp_path)
    port = free_port()
    async with process("shop", tmp_path, port):
        async with process("payments", tmp_path, port, point) as dying:
            await send(tmp_path, port, Order("a"), Order("poor"))
            async with asyncio.timeout(PATIENCE):
                assert await dying.wait() == -9, "it never came to that point"
        async with process("payments", tmp_path, port):
            found = await settled(tmp_path, 2, waiting=2)
    assert found.orders == found.settled == {"a": 1, "poor": 1}
    assert found.charges == found.ledger == {"a": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_both_may_be_killed_at_any_time(tmp_path: Path) -> None:
    """Killed again and again while orders go through: as many charges as orders, one for each."""
    prepare(tmp_path)
    port = free_port()
    names = [f"{'poor' if number % 5 == 0 else 'rich'}-{number}" for number in range(ORDERS)]
    for number in range(KILLS):
        async with process("payments", tmp_path, port) as other, process("shop", tmp_path, port) as caller:
            share = names[number::KILLS]
            await send(tmp_path, port, *map(Order, share))
            before = books(tmp_path)
            await until(lambda before=before: books(tmp_path) != before)  # type: ignore[misc]  # bound here
            (other if number % 2 else caller).kill()
    async with process("payments", tmp_path, port), process("shop", tmp_path, port):
        found = await settled(tmp_path, ORDERS, waiting=4 * KILLS, patience=LASTS + PATIENCE)
    assert found.orders == found.settled == dict.fromkeys(names, 1)
    assert found.charges == found.ledger == dict.fromkeys((name for name in names if name.startswith("rich")), 1)


@pytest.mark.slow
async def test_a_plain_post_in_a_handler_charges_twice(tmp_path: Path) -> None:
    """The control run: without the protocol the same death is paid for twice."""
    prepare(tmp_path)
    port = free_port()
    async with process("payments", tmp_path, port):
        async with process("shop", tmp_path, port, "before-commit") as dying:
            await send(tmp_path, port, PlainOrder("a"))
            async with asyncio.timeout(PATIENCE):
                assert await dying.wait() == -9
        async with process("shop", tmp_path, port):
            await until(lambda: bool(books(tmp_path).settled))
            found = books(tmp_path)
    assert (found.orders, found.charges) == ({"a": 1}, {"a": 2})
