"""Redis, through redis-py."""

from onceonly.systems import DocumentService, Driver, System


def _documents() -> DocumentService:
    from onceonly.adapters.redis import documents  # noqa: PLC0415 - imports the driver

    return documents


SYSTEM = System(name="Redis", drivers={"": Driver(("redis",), "onceonly[redis]")}, documents=_documents, parts="prefix")
