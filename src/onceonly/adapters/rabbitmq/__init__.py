"""RabbitMQ, through aiormq."""

from onceonly.ports.transport import Traits
from onceonly.systems import Driver, System, TransportService


def _transport() -> TransportService:
    from onceonly.adapters.rabbitmq import opening  # noqa: PLC0415 - imports the driver

    return opening.QUEUES


def _address(url: str) -> object:
    from onceonly.adapters.rabbitmq.address import read_address  # noqa: PLC0415 - only for a URL of this system

    return read_address(url)


def _traits(url: str) -> Traits:
    from onceonly.adapters.rabbitmq.address import read_address  # noqa: PLC0415 - the same

    return read_address(url).traits


SYSTEM = System(
    name="RabbitMQ",
    address=_address,
    traits=_traits,
    drivers={"": Driver(("aiormq",), "onceonly[rabbitmq]")},
    transport=_transport,
)
