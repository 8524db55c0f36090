"""NATS JetStream, through nats-py."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.nats.address:read_address"
_DRIVER = Driver(("nats",), "onceonly[nats]")
SYSTEM = System(
    name="NATS JetStream",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": _DRIVER, "tls": _DRIVER},
    transport=queues("onceonly.adapters.nats.transport:NatsTransport"),
)
