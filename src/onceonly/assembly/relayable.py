"""Whether the records of an endpoint can be found by another process than the one that wrote them."""

from onceonly.config.endpoint import Settings
from onceonly.model.errors import SetupError
from onceonly.ports.store import PendingRecords


def require_records(settings: Settings) -> None:
    """Make sure that a relay in a process of its own has something to find, and somewhere to send it. Raises SetupError."""
    if reason := _reason(settings):
        raise SetupError(f"endpoint {settings.name!r} needs no relay: {reason}")


def required_records(settings: Settings, pending: PendingRecords | None) -> PendingRecords:
    """Return what finds the records of an opened store. Raises SetupError for a store that cannot be searched."""
    if pending is None:
        raise SetupError(f"endpoint {settings.name!r} needs no relay: its store {settings.places.store} cannot be searched")
    return pending


def _reason(settings: Settings) -> str:
    store, transport = settings.places.store, settings.places.transport
    if not settings.plan.records:
        return "deduplication=Off() stores no records of unsent messages: use History()"
    if store.keeps_documents:
        return (
            f"its store {store} holds documents, which are not searched. Unsent messages are sent when "
            "the message that caused them is delivered again"
        )
    for role, place in (("store", store), ("transport", transport)):
        if place.in_process:
            return f"its {role} {place} exists only in the memory of one process: use a database or a broker, or set --{role}"
    return ""
