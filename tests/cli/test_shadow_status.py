"""`onceonly status` of an endpoint in shadow mode."""

import subprocess
import sys

import pytest

from tests.cli.terminal import Terminal

PROGRAM = """
from onceonly import Endpoint, Shadow

shop = Endpoint("shop", store="sqlite:///shadow.db", transport="sqlite:///queue.db", deduplication=Shadow())

@shop.handler(type="Order")
async def order(body: dict) -> None: ...
"""
SEND = ("send", "orders.jsonl", "--to", "office:shop", "--type", "Order", "--id-from", "order_id")


def test_what_history_would_have_skipped_is_shown(onceonly: Terminal) -> None:
    """As a number, as JSON, and in words. An endpoint without shadow mode has no such column."""
    (onceonly.folder / "office.py").write_text(PROGRAM)
    onceonly("schema", "create", "office:shop")
    onceonly.write("orders.jsonl", [{"order_id": "A-1"}, {"order_id": "A-2"}])
    for _ in range(2):
        assert onceonly(*SEND).code == 0
        assert onceonly("run", "office:shop", "--drain").code == 0
    assert onceonly("status", "office:shop", "--json").answer[0]["shadow"] == {"known": 2}
    shown = onceonly("status", "office:shop")
    assert "shadow: shop handled 2 messages that History(...) would not have: copies of messages" in shown.err
    assert "shadow" in shown.out
    assert "shadow" not in onceonly("status", "shop:shop").out


FROM_HISTORY = """
import asyncio
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from onceonly import Endpoint

async def main() -> None:
    shop = Endpoint("shop", store="sqlite:///shadow.db", transport="sqlite:///queue.db")
    async with AsyncSession(create_async_engine("sqlite+aiosqlite:///shadow.db")) as session:
        shop.enlist(session).send({"order_id": "A-1"}, to="shop", type="Order")
        await session.commit()

asyncio.run(main())
"""
"""Commits a message with `History`, and ends before it is sent."""


@pytest.mark.parametrize("setting", ["Shadow()", "Off()"])
def test_messages_that_were_committed_with_history_and_not_sent_are_shown(onceonly: Terminal, setting: str) -> None:
    """No process sends them with this setting: the library is needed until one with `History` has."""
    (onceonly.folder / "office.py").write_text(PROGRAM.replace("Shadow()", setting).replace(", Shadow", ", Off, Shadow"))
    (onceonly.folder / "history.py").write_text(FROM_HISTORY)
    onceonly("schema", "create", "office:shop")
    subprocess.run([sys.executable, "history.py"], check=True, timeout=120, cwd=onceonly.folder)
    assert onceonly("status", "office:shop", "--json").answer[0]["records"] == 1
    done = onceonly("leave", "office:shop", "--json")
    (records,) = [each for each in done.answer[0]["remainders"] if each["what"] == "pending records"]
    assert (done.code, records["count"], records["matters"]) == (1, 1, True)
    assert "History()" in records["to_do"]
