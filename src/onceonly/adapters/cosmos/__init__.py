"""Azure Cosmos DB, through its SDK."""

from onceonly.systems import DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly.adapters.cosmos import documents  # noqa: PLC0415 - imports the driver

    return documents


def _address(url: str) -> object:
    from onceonly.adapters.cosmos.address import read_address  # noqa: PLC0415 - only for a URL of this system

    return read_address(url)


SYSTEM = System(
    name="Cosmos DB",
    address=_address,
    drivers={"": Driver(("azure.cosmos", "aiohttp"), "onceonly[cosmos]")},
    documents=_documents,
)
