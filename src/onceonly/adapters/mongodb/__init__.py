"""MongoDB, through pymongo."""

from onceonly.systems import Driver, System, imported

_DRIVER = Driver(("pymongo",), "onceonly[mongodb]")
SYSTEM = System(
    name="MongoDB",
    address=imported("onceonly.adapters.mongodb.address:read_address"),
    drivers={"": _DRIVER, "srv": _DRIVER},
    documents=imported("onceonly.adapters.mongodb.documents"),
    lists_pending=True,
    saves_together=True,
    parts="prefix",
)
