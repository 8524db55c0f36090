"""The carriers of this process, by name. An integration registers its own when it is imported, and opens nothing.

A process that sends what another process has committed must import the same application: `onceonly relay tasks:shop`.
"""

from collections.abc import Callable

from onceonly.ports.carrier import MessageCarrier

__all__ = ["are_there_any", "carrier_names", "open_carrier", "register_carrier", "use_carriers", "uses_carriers"]

_OPENERS: dict[str, Callable[[], MessageCarrier]] = {}
_ENDPOINTS: set[str] = set()


def register_carrier(name: str, opener: Callable[[], MessageCarrier]) -> None:
    """Use this function to make the carrier of a name, which has no colon. It connects to nothing."""
    _OPENERS[name] = opener


def use_carriers(endpoint: str) -> None:
    """Note that an endpoint sends to carriers, so that it needs no transport to send."""
    _ENDPOINTS.add(endpoint)


def uses_carriers(endpoint: str) -> bool:
    """Return whether an endpoint sends to carriers, as far as this process has imported what does."""
    return endpoint in _ENDPOINTS


def are_there_any() -> bool:
    """Return whether this process has a carrier."""
    return bool(_OPENERS)


def carrier_names() -> tuple[str, ...]:
    """Return the names of all carriers of this process."""
    return tuple(sorted(_OPENERS))


def open_carrier(name: str) -> MessageCarrier | None:
    """Make the carrier of a name, or return None if this process has none."""
    opener = _OPENERS.get(name)
    return None if opener is None else opener()
