"""The ports of `memory:` URLs, as pure functions over immutable worlds: for tests, and for the checker."""

from onceonly.systems import Offer, System, imported

_URLS = imported("onceonly.adapters.memory.urls")
_TRAITS = imported("onceonly.adapters.memory.transport:traits_of")
_NOTEBOOK = frozenset({"onceonly.adapters.memory.store.Notebook"})
SYSTEM = System(
    name="memory",
    documents=_URLS,
    artifacts=_URLS,
    transport=_URLS,
    traits=lambda _url: _TRAITS(),
    in_process=True,
    saves_together=True,
    resources=Offer(_NOTEBOOK, _NOTEBOOK, entities=True, documents=True),
)
