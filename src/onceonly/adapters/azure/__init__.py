"""Azure Table, Blob and Queue Storage and Azure Service Bus, through the Azure SDK."""

from onceonly.ports.transport import Traits
from onceonly.systems import ArtifactService, DocumentService, Driver, System, TransportService


def _table() -> DocumentService:
    from onceonly.adapters.azure import table  # noqa: PLC0415 - imports the driver

    return table


def _blob() -> DocumentService:
    from onceonly.adapters.azure import blob  # noqa: PLC0415 - imports the driver

    return blob


def _artifacts() -> ArtifactService:
    from onceonly.adapters.azure import blob_artifacts  # noqa: PLC0415 - imports the driver

    return blob_artifacts


def _queue() -> TransportService:
    from onceonly.adapters.azure import queue_opening  # noqa: PLC0415 - imports the driver

    return queue_opening.QUEUES


def _servicebus() -> TransportService:
    from onceonly.adapters.azure import servicebus_opening  # noqa: PLC0415 - imports the driver

    return servicebus_opening.QUEUES


def _table_address(url: str) -> object:
    from onceonly.adapters.azure.address import read_table  # noqa: PLC0415 - only for a URL of this system

    return read_table(url)


def _blob_address(url: str) -> object:
    from onceonly.adapters.azure.address import read_blob  # noqa: PLC0415 - only for a URL of this system

    return read_blob(url)


def _queue_address(url: str) -> object:
    from onceonly.adapters.azure.queue_address import read_queue  # noqa: PLC0415 - only for a URL of this system

    return read_queue(url)


def _queue_traits(url: str) -> Traits:
    from onceonly.adapters.azure.queue_address import read_queue  # noqa: PLC0415 - the same

    return read_queue(url).traits


def _servicebus_address(url: str) -> object:
    from onceonly.adapters.azure.servicebus_address import read_servicebus  # noqa: PLC0415 - only for a URL of this system

    return read_servicebus(url)


def _servicebus_traits(url: str) -> Traits:
    from onceonly.adapters.azure.servicebus_address import read_servicebus  # noqa: PLC0415 - the same

    return read_servicebus(url).traits


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
QUEUE = System(
    name="Azure Queue Storage",
    address=_queue_address,
    traits=_queue_traits,
    drivers={"": Driver(("azure.storage.queue", "aiohttp"), "onceonly[azure-queue]")},
    transport=_queue,
    parts="prefix",
)
SERVICE_BUS = System(
    name="Azure Service Bus",
    address=_servicebus_address,
    traits=_servicebus_traits,
    drivers={"": Driver(("azure.servicebus", "aiohttp"), "onceonly[servicebus]")},
    transport=_servicebus,
)
