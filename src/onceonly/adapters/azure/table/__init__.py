"""Azure Table Storage."""

from onceonly.systems import Driver, System, imported

SYSTEM = System(
    name="Azure Table Storage",
    address=imported("onceonly.adapters.azure.address:read_table"),
    drivers={"": Driver(("azure.data.tables", "aiohttp"), "onceonly[azure-table]")},
    documents=imported("onceonly.adapters.azure.table.documents"),
    drops_expired=False,
    saves_together=True,
)
