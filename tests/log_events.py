"""The events in captured log entries."""

import logging
from collections.abc import Iterable


def event_in(record: logging.LogRecord) -> str:
    """Return the constant message of an entry, without its fields."""
    return str(vars(record).get("event", record.getMessage()))


def events(records: Iterable[logging.LogRecord]) -> list[str]:
    """Return the constant message of each entry."""
    return [event_in(record) for record in records]
