"""MongoDB, through pymongo."""

from onceonly.systems import DocumentService, Driver, Offer, System


def _documents() -> DocumentService:
    from onceonly.adapters.mongodb import documents  # noqa: PLC0415 - imports the driver

    return documents


_DRIVER = Driver(("pymongo",), "mongodb")
SYSTEM = System(name="MongoDB", drivers={"": _DRIVER, "srv": _DRIVER}, documents=_documents, offer=Offer(entities=True))
