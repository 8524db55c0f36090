"""What a store setting comes to for one endpoint."""

from msgspec import Struct
from msgspec.structs import replace

from onceonly.config.deduplication import ControlMessages, DeduplicationPlan
from onceonly.config.location import Location
from onceonly.systems import Family


class StorePlan(Struct, frozen=True, kw_only=True):
    """What a store setting comes to for one endpoint. Everything that depends on the kind of store is read here.

    `on_documents` means that a unit is one document. `lists_pending` means that documents with unsent messages are listed, so
    that a relay finds them. `has_controls` means that control messages finish transactions: always on documents, elsewhere if
    the endpoint asks for it. `has_transactions` is false where no records are stored. `has_remote_requests` is whether the
    store can hold the requests of other services.
    """

    family: Family
    on_documents: bool
    lists_pending: bool
    has_controls: bool
    has_transactions: bool
    has_remote_requests: bool

    @property
    def has_tables(self) -> bool:
        return self.family is Family.SQL

    @property
    def is_searchable(self) -> bool:
        """Whether other processes could find its records."""
        return self.family is not Family.DOCUMENTS or self.lists_pending

    def for_entities(self) -> "StorePlan":
        """Return the plan for handlers that work on entities: in memory, they need documents."""
        on_documents = not self.has_tables
        return replace(self, on_documents=on_documents, has_controls=on_documents or self.has_controls)


def plan_store(
    store: Location, deduplication: DeduplicationPlan, *, makes_artifacts: bool, control: ControlMessages | None
) -> StorePlan:
    """Decide what a store setting means: the one place that takes its kind apart."""
    family = store.family
    assert family is not None  # noqa: S101 - it serves the role
    elsewhere = deduplication.marks is not None or deduplication.tokens is not None
    in_memory = family is Family.MEMORY
    only_sends = control is not None and bool(control.processed_by)
    on_documents = family is Family.DOCUMENTS or (in_memory and (elsewhere or makes_artifacts or only_sends))
    return StorePlan(
        family=family,
        on_documents=on_documents,
        lists_pending=store.system.lists_pending,
        has_controls=on_documents or control is not None,
        has_transactions=deduplication.records,
        has_remote_requests=family is Family.SQL or (in_memory and deduplication.history is not None and not makes_artifacts),
    )
