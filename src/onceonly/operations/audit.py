"""The audit trail in the log `onceonly.audit`: one line when an action begins, and one when it ends or is refused."""

import logging

from onceonly.formats.log_events import EventLogger
from onceonly.model.action import Action

_log = EventLogger(logging.getLogger("onceonly.audit"))


def log_started(action: Action) -> None:
    """Log that an action was stored and begins."""
    _log.info("operator action started", extra=_fields(action))


def log_ended(action: Action) -> None:
    """Log the outcome of an action."""
    _log.info("operator action ended", extra=_fields(action))


def log_refused(action: Action) -> None:
    """Log that an action was refused, and why."""
    _log.info("operator action refused", extra=_fields(action) | {"reason": action.reason})


def _fields(action: Action) -> dict[str, object]:
    return {
        "endpoint": action.endpoint,
        "action": action.position,
        "kind": action.action.value,
        "actor": action.actor,
        "method": action.method,
        "state": action.state.value,
        "total": action.total,
        "done": action.done,
        "kept": action.kept,
    }
