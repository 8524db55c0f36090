"""Every port in the memory of one process, as pure functions over immutable worlds: for tests, and for the checker."""

from typing import Protocol

from onceonly.ports.transport import Traits
from onceonly.systems import ArtifactService, DocumentService, Offer, System, TransportService


class _Services(DocumentService, ArtifactService, TransportService, Protocol):
    """What one module opens."""


def _services() -> _Services:
    from onceonly.adapters.memory import opening  # noqa: PLC0415 - only when it is opened

    return opening


def _traits(_url: str) -> Traits:
    from onceonly.adapters.memory.transport import traits_of  # noqa: PLC0415 - only when it is asked for

    return traits_of()


_NOTEBOOK = frozenset({"onceonly.adapters.memory.store.Notebook"})
SYSTEM = System(
    name="memory",
    documents=_services,
    artifacts=_services,
    transport=_services,
    traits=_traits,
    in_process=True,
    resources=Offer(_NOTEBOOK, _NOTEBOOK, entities=True),
)
