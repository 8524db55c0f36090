"""MongoDB, through pymongo."""

from onceonly.systems import DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly.adapters.mongodb import documents  # noqa: PLC0415 - imports the driver

    return documents


_DRIVER = Driver(("pymongo",), "onceonly[mongodb]")
SYSTEM = System(name="MongoDB", drivers={"": _DRIVER, "srv": _DRIVER}, documents=_documents)
