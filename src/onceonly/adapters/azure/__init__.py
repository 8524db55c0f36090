"""Azure Table and Blob Storage, through the Azure SDK."""

from onceonly.systems import ArtifactService, DocumentService, Driver, System


def _table() -> DocumentService:
    from onceonly.adapters.azure import table  # noqa: PLC0415 - imports the driver

    return table


def _blob() -> DocumentService:
    from onceonly.adapters.azure import blob  # noqa: PLC0415 - imports the driver

    return blob


def _artifacts() -> ArtifactService:
    from onceonly.adapters.azure import blob_artifacts  # noqa: PLC0415 - imports the driver

    return blob_artifacts


def _table_address(url: str) -> object:
    from onceonly.adapters.azure.address import read_table  # noqa: PLC0415 - only for a URL of this system

    return read_table(url)


def _blob_address(url: str) -> object:
    from onceonly.adapters.azure.address import read_blob  # noqa: PLC0415 - only for a URL of this system

    return read_blob(url)


TABLE = System(
    name="Azure Table Storage",
    address=_table_address,
    drivers={"": Driver(("azure.data.tables", "aiohttp"), "onceonly[azure-table]")},
    documents=_table,
    drops_expired=False,
)
BLOB = System(
    name="Azure Blob Storage",
    address=_blob_address,
    drivers={"": Driver(("azure.storage.blob", "aiohttp"), "onceonly[azure-blob]")},
    documents=_blob,
    artifacts=_artifacts,
    drops_expired=False,
    parts="path",
)
