"""RavenDB, over its HTTP interface, through aiohttp."""

from onceonly.systems import Driver, System, imported

_DRIVER = Driver(("aiohttp",), "onceonly[ravendb]")
SYSTEM = System(
    name="RavenDB",
    address=imported("onceonly.adapters.ravendb.address:read_address"),
    drivers={"": _DRIVER, "tls": _DRIVER},
    documents=imported("onceonly.adapters.ravendb.documents"),
    lists_pending=True,
    saves_together=True,
    parts="prefix",
)
