"""The name of a transport in telemetry: `messaging.system` of the OpenTelemetry semantic conventions, or a name of our own."""

from onceonly.config.location import Location, is_engine, scheme_of

_NAMES = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "sqs": "aws_sqs",
    "mysql": "mariadb",
    "rediss": "redis",
    "azure-queue": "azure_queue",
}


def messaging_system(place: Location) -> str:
    """Return the name of the system that a location names."""
    return place.system.name.lower() if is_engine(place.setting) else system_of_scheme(scheme_of(place.setting))


def system_of_scheme(scheme: str) -> str:
    """Return the name of the system that the scheme of a URL names."""
    base = scheme.partition("+")[0].lower()
    return _NAMES.get(base, base)
