"""Events that no endpoint had subscribed to, as `onceonly status` shows them."""

from tests.cli.terminal import Terminal

PROGRAM = """
from onceonly import Context, Endpoint

shop = Endpoint("shop", store="sqlite:///s.db", transport="sqlite:///q.db")


@shop.handler(type="Order")
async def order(message: dict, context: Context) -> None:
    context.publish({"id": message["id"]}, type="OrderPlaced")
    context.publish({"id": message["id"]}, type="Order.Heard")


@shop.handler(type="Order.Heard")
async def heard(message: dict) -> None:
    pass
"""


def test_status_shows_the_events_that_nobody_got(onceonly: Terminal) -> None:
    """By type in JSON; as a warning with what to do otherwise."""
    (onceonly.folder / "counted.py").write_text(PROGRAM)
    onceonly.write("orders.jsonl", [{"id": "a"}, {"id": "b"}])
    for _ in range(2):
        onceonly("send", "orders.jsonl", "--to", "counted:shop", "--type", "Order", "--id-from", "id")
        assert onceonly("run", "counted:shop", "--drain").code == 0
    (status,) = onceonly("status", "counted:shop", "--json").answer
    assert status["unsubscribed"] == {"OrderPlaced": 2}
    shown = onceonly("status", "counted:shop")
    assert "unsubscribed" in shown.out
    assert "shop published 2 events of type OrderPlaced without a subscriber" in " ".join(shown.err.split())
