"""Every port in the memory of one process, as pure functions over immutable worlds: for tests, and for the checker."""

from onceonly.systems import ArtifactService, DocumentService, Offer, System, TransportService


def _documents() -> DocumentService:
    from onceonly.adapters.memory import opening  # noqa: PLC0415 - only when it is opened

    return opening


def _artifacts() -> ArtifactService:
    from onceonly.adapters.memory import opening  # noqa: PLC0415 - only when it is opened

    return opening


def _transport() -> TransportService:
    from onceonly.adapters.memory import opening  # noqa: PLC0415 - only when it is opened

    return opening


_NOTEBOOK = frozenset({"onceonly.adapters.memory.store.Notebook"})
SYSTEM = System(
    name="memory",
    documents=_documents,
    artifacts=_artifacts,
    transport=_transport,
    in_process=True,
    resources=Offer(_NOTEBOOK, _NOTEBOOK, entities=True),
)
