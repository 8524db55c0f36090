"""Redis, through redis-py."""

from onceonly.systems import Driver, System, imported, queues

_ADDRESS = "onceonly.adapters.redis.address:read_address"
SYSTEM = System(
    name="Redis",
    address=imported(_ADDRESS),
    traits=imported(_ADDRESS, "traits"),
    drivers={"": Driver(("redis",), "onceonly[redis]")},
    documents=imported("onceonly.adapters.redis.documents"),
    transport=queues("onceonly.adapters.redis.transport:RedisTransport"),
    parts="prefix",
    lists_pending=True,
)
