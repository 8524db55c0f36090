"""Azure Blob Storage."""

from onceonly.systems import Driver, System, imported

SYSTEM = System(
    name="Azure Blob Storage",
    address=imported("onceonly.adapters.azure.address:read_blob"),
    keys=imported("onceonly.adapters.azure.address:blob_keys"),
    drivers={"": Driver(("azure.storage.blob", "aiohttp"), "onceonly[azure-blob]")},
    documents=imported("onceonly.adapters.azure.blob.documents"),
    artifacts=imported("onceonly.adapters.azure.blob.artifacts"),
    drops_expired=False,
    parts="path",
)
