"""Opens queues on Azure Service Bus."""

from onceonly.adapters.azure.servicebus import ServiceBusTransport
from onceonly.adapters.azure.servicebus_address import read_servicebus
from onceonly.adapters.azure.servicebus_link import Link
from onceonly.ports.environment import Clock, RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, _chance: RandomSource) -> Link:
    return Link(read_servicebus(url))


def _queue(link: Link, endpoint: str, *, clock: Clock) -> ServiceBusTransport:  # noqa: ARG001 - the service's clock decides
    return ServiceBusTransport(link, endpoint)


QUEUES = SharedQueues(_connect, _queue)
