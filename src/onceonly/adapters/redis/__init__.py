"""Redis, through redis-py."""

from onceonly.ports.transport import Traits
from onceonly.systems import DocumentService, Driver, System, TransportService


def _documents() -> DocumentService:
    from onceonly.adapters.redis import documents  # noqa: PLC0415 - imports the driver

    return documents


def _transport() -> TransportService:
    from onceonly.adapters.redis import opening  # noqa: PLC0415 - imports the driver

    return opening.QUEUES


def _address(url: str) -> object:
    from onceonly.adapters.redis.address import read_address  # noqa: PLC0415 - only for a URL of this system

    return read_address(url)


def _traits(url: str) -> Traits:
    from onceonly.adapters.redis.address import read_address  # noqa: PLC0415 - the same

    return read_address(url).traits


SYSTEM = System(
    name="Redis",
    address=_address,
    traits=_traits,
    drivers={"": Driver(("redis",), "onceonly[redis]")},
    documents=_documents,
    transport=_transport,
    parts="prefix",
)
