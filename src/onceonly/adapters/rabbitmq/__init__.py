"""RabbitMQ, through aiormq."""

from onceonly.systems import Driver, System, TransportService


def _transport() -> TransportService:
    from onceonly.adapters.rabbitmq import opening  # noqa: PLC0415 - imports the driver

    return opening


SYSTEM = System(name="RabbitMQ", drivers={"": Driver(("aiormq",), "onceonly[rabbitmq]")}, transport=_transport)
