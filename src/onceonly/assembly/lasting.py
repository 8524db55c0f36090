"""Whether the records of an endpoint can be found by another process than the one that wrote them."""

from onceonly.config.deduplication import Off
from onceonly.config.endpoint import Settings
from onceonly.config.urls import is_in_process, keeps_documents, shown
from onceonly.model.errors import SetupError


def require_records(settings: Settings) -> None:
    """Make sure that a relay in a process of its own has something to find, and somewhere to send it. Raises SetupError."""
    if reason := _reason(settings):
        raise SetupError(f"nothing can be relayed for endpoint {settings.name!r}: {reason}")


def _reason(settings: Settings) -> str:
    store, transport = settings.store, settings.transport
    if isinstance(settings.deduplication, Off):
        return "with deduplication=Off() no record is kept of what it sends; use History() or another"
    if keeps_documents(store):
        return (
            f"its store {shown(store)} keeps documents, which are not searched; what a handler left there is sent when its"
            " message comes again, so it needs no relay"
        )
    for role, setting in (("store", store), ("transport", transport)):
        if is_in_process(setting):
            return f"its {role} {shown(setting)} is in the memory of one process; name a database or a broker, or use --{role}"
    return ""
