"""Azure Service Bus."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.azure.servicebus.address:read_servicebus"
SYSTEM = System(
    name="Azure Service Bus",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": Driver(("azure.servicebus", "aiohttp"), "onceonly[servicebus]")},
    transport=queues("onceonly.adapters.azure.servicebus.transport:ServiceBusTransport"),
)
