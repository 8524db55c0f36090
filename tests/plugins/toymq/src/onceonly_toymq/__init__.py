"""toymq://name, a system for onceonly: queues in the memory of this process."""

from onceonly.systems import System, TransportService


def _transport() -> TransportService:
    from onceonly_toymq import broker  # noqa: PLC0415 - would import a driver

    return broker


SYSTEM = System(name="toy broker", transport=_transport, in_process=True)
