"""Redis, through redis-py."""

from onceonly.systems import DocumentService, Driver, Offer, System


def _documents() -> DocumentService:
    from onceonly.adapters.redis import documents  # noqa: PLC0415 - imports the driver

    return documents


SYSTEM = System(
    name="Redis", drivers={"": Driver(("redis",), "redis")}, documents=_documents, parts="prefix", offer=Offer(entities=True)
)
