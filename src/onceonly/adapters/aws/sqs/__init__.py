"""SQS, with SNS for events."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.aws.sqs.address:read_sqs"
SYSTEM = System(
    name="SQS",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": Driver(("aiobotocore",), "onceonly[sqs]")},
    transport=queues("onceonly.adapters.aws.sqs.transport:SqsTransport"),
)
