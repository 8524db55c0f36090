"""RabbitMQ, through aiormq."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.rabbitmq.address:read_address"
SYSTEM = System(
    name="RabbitMQ",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": Driver(("aiormq",), "onceonly[rabbitmq]")},
    transport=queues("onceonly.adapters.rabbitmq.transport:RabbitMQTransport"),
)
