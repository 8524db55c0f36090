"""`onceonly status` of an endpoint in shadow mode."""

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
