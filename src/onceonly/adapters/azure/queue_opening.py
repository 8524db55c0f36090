"""Opens queues in Azure storage."""

from onceonly.adapters.azure.queue_address import read_queue
from onceonly.adapters.azure.queue_client import QueueLink
from onceonly.adapters.azure.queue_transport import AzureQueueTransport
from onceonly.ports.environment import RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, _chance: RandomSource) -> QueueLink:
    return await QueueLink(read_queue(url)).open()


QUEUES = SharedQueues(_connect, AzureQueueTransport)
