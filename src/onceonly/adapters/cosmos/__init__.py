"""Azure Cosmos DB, through its SDK."""

from onceonly.systems import Driver, System, imported

SYSTEM = System(
    name="Cosmos DB",
    address=imported("onceonly.adapters.cosmos.address:read_address"),
    drivers={"": Driver(("azure.cosmos", "aiohttp"), "onceonly[cosmos]")},
    documents=imported("onceonly.adapters.cosmos.documents"),
    lists_pending=True,
    saves_together=True,
    parts="prefix",
)
