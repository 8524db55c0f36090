"""Azure Queue Storage."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.azure.queue.address:read_queue"
SYSTEM = System(
    name="Azure Queue Storage",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": Driver(("azure.storage.queue", "aiohttp"), "onceonly[azure-queue]")},
    transport=queues("onceonly.adapters.azure.queue.transport:AzureQueueTransport"),
    parts="prefix",
)
