"""MongoDB, through pymongo."""

from onceonly.systems import DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly.adapters.mongodb import documents  # noqa: PLC0415 - imports the driver

    return documents


def _address(url: str) -> object:
    from onceonly.adapters.mongodb.address import read_address  # noqa: PLC0415 - only for a URL of this system

    return read_address(url)


_DRIVER = Driver(("pymongo",), "onceonly[mongodb]")
SYSTEM = System(name="MongoDB", address=_address, drivers={"": _DRIVER, "srv": _DRIVER}, documents=_documents)
