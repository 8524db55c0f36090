"""Kafka, through aiokafka. It sends only: a host receives."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.kafka.address:read_address"
_DRIVER = Driver(("aiokafka",), "onceonly[kafka]")
SYSTEM = System(
    name="Kafka",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": _DRIVER, "tls": _DRIVER},
    transport=queues("onceonly.adapters.kafka.transport:KafkaTransport"),
)
