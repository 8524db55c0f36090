"""Opens queues on SQS."""

from onceonly.adapters.aws.sqs_address import read_sqs
from onceonly.adapters.aws.sqs_client import Link
from onceonly.adapters.aws.sqs_transport import SqsTransport
from onceonly.ports.environment import RandomSource
from onceonly.systems.shared import SharedQueues


async def _connect(url: str, _chance: RandomSource) -> Link:
    return await Link.open(read_sqs(url))


QUEUES = SharedQueues(_connect, SqsTransport)
