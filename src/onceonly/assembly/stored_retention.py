"""The retention of an endpoint as it is stored, compared with what the code says."""

import logging

from onceonly.config.endpoint import Settings
from onceonly.documents.retention import StoredRetention
from onceonly.formats.log_events import EventLogger
from onceonly.model.changed_retention import as_duration, refuse_less
from onceonly.model.retention import in_milliseconds
from onceonly.model.wording import in_words
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.systems import Family

_log = EventLogger(logging.getLogger("onceonly"))


def configured(settings: Settings) -> int:
    """Return how many milliseconds an endpoint's code asks for; 0 for one that keeps no claims for a time."""
    plan = settings.plan
    asked = plan.history if plan.marks is None else plan.retention
    return 0 if asked is None else in_milliseconds(asked)


def keeps_claims(settings: Settings) -> bool:
    """Return whether an endpoint has a retention that is stored."""
    plan = settings.plan
    place = plan.marks or settings.places.store
    return (plan.history is not None or plan.marks is not None) and place.family is not Family.MEMORY


def stored_in(documents: Documents, settings: Settings, *, clock: Clock) -> StoredRetention:
    """Return the retention that is stored in documents."""
    return StoredRetention(documents, settings.name, clock=clock, configured=configured(settings))


async def check_retention(settings: Settings, stored: StoredRetention) -> None:
    """Compare what is stored with the code, or store that. Raises SetupError if less is stored; RetryableError."""
    kept, asked = (await stored.read()).latest, configured(settings)
    refuse_less(settings.name, asked, kept)
    tell_difference(settings.name, asked, kept)


def tell_difference(endpoint: str, asked: int, kept: int) -> None:
    """Log that claims are kept for longer than the code says."""
    if kept > asked:
        fields = {"endpoint": endpoint, "stored": in_words(as_duration(kept)), "code": in_words(as_duration(asked))}
        _log.warning("stored retention holds, not that of the code", extra=fields)
