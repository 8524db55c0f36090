"""What a broker reports about a queue at start and while it is in use, for people."""

import logging

from onceonly.config.location import Location
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.ports.transport import ChecksBroker, Transport

_log = EventLogger(logging.getLogger("onceonly.transport"))
_TOLD = LoggedKeys()
"""Endpoints, places and texts that this process has logged."""


async def report_settings(transport: Transport, endpoint: str, place: Location) -> float | None:
    """Log how the broker stores the queue of an endpoint, if it reports that. Each text once in a process.

    Returns the seconds after which the settings are checked again, None for never. Raises SetupError, RetryableError.
    """
    if not isinstance(transport, ChecksBroker):
        return None
    report = await transport.check()
    where = {"endpoint": endpoint, "place": str(place)}
    settings = ", ".join(f"{name} {value}" for name, value in report.settings)
    if settings and _TOLD.add(endpoint, str(place), settings):
        _log.info("queue settings", extra={**where, "settings": settings})
    for warning in report.warnings:
        if _TOLD.add(endpoint, str(place), warning):
            _log.warning("queue warning", extra={**where, "reason": warning})
    return report.again_after
