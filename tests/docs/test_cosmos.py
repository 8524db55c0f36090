"""The page on Cosmos DB: its program runs on a stand-in, and its query leaves out what the library adds."""

import sys
from types import ModuleType
from uuid import uuid4

import pytest

from onceonly.assembly.documents import create
from tests import ROOT
from tests.docs.test_documentation import snippet
from tests.servers.cosmosdb.harness import CosmosStandIn
from tests.servers.cosmosdb.queries import OTHERS

PAGE = ROOT / "docs" / "reference" / "cosmos.md"
STORE = "cosmos://account.documents.azure.com/shop/data"
TRANSPORT = "servicebus://name.servicebus.windows.net"


@pytest.mark.slow
async def test_the_program_of_the_page_writes_all_in_one_partition(
    cosmos_standin: CosmosStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two orders and a copy of the first: each receipt is there, and the total counts each order once."""
    container = f"t{uuid4().hex[:12]}"
    program = snippet(PAGE, "# shop.py\n").replace(STORE, cosmos_standin.place(container)).replace(TRANSPORT, "memory://shop")
    await create(cosmos_standin.place(container, "?partition_key=/tenantId"))
    made = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", made)
    exec(compile(program, "shop", "exec"), made.__dict__)  # noqa: S102 - the page's program
    async with made.shop.hosted() as hosted:
        for order in ("17", "18", "17"):
            body = b'{"tenant": "acme", "order_id": "%s", "amount": 5}' % order.encode()
            outcome = await hosted.handle_one(body, headers={"ce-id": order, "ce-source": "web", "ce-type": "PlaceOrder"})
            assert outcome.is_settled, outcome.reason
    items = {item["id"]: item for item in cosmos_standin.items(container) if item["tenantId"] == "acme"}
    assert {name for name, item in items.items() if "onceonly" not in item} == {"total", "receipt-17", "receipt-18"}
    assert items["total"]["orders"] == 2
    assert items["entity=2FOrder=2F17"]["onceonly"]["body"]["state"] == {"order_id": "17", "amount": 5}


def test_the_query_of_the_page_is_the_one_that_is_tested() -> None:
    """Its condition is in the query that the stand-in answers."""
    assert OTHERS.partition(" WHERE ")[2] in PAGE.read_text()
