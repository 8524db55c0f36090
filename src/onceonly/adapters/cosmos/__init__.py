"""Azure Cosmos DB, through its SDK."""

from onceonly.systems import DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly.adapters.cosmos import documents  # noqa: PLC0415 - imports the driver

    return documents


SYSTEM = System(
    name="Cosmos DB",
    drivers={"": Driver(("azure.cosmos", "aiohttp"), "onceonly[cosmos]")},
    documents=_documents,
)
