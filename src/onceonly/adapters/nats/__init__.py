"""NATS JetStream, through nats-py."""

from onceonly.ports.transport import Traits
from onceonly.systems import Driver, System, TransportService


def _transport() -> TransportService:
    from onceonly.adapters.nats import opening  # noqa: PLC0415 - imports the driver

    return opening.QUEUES


def _address(url: str) -> object:
    from onceonly.adapters.nats.address import read_address  # noqa: PLC0415 - only for a URL of this system

    return read_address(url)


def _traits(url: str) -> Traits:
    from onceonly.adapters.nats.address import read_address  # noqa: PLC0415 - the same

    return read_address(url).traits


_DRIVER = Driver(("nats",), "onceonly[nats]")
SYSTEM = System(
    name="NATS JetStream", address=_address, traits=_traits, drivers={"": _DRIVER, "tls": _DRIVER}, transport=_transport
)
