"""What decides which messages may be handled, where it is in documents of its own: marks of what is done, and tokens."""

from datetime import timedelta
from typing import cast

from onceonly.algorithms.admission import DedupStoreAdmission, TokenAdmission, TokensInStore
from onceonly.assembly.parts import AdmissionParts
from onceonly.config.deduplication import DeduplicationPlan
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.bookkeeping import DocumentCounter
from onceonly.documents.dedup import DocumentMarkStore, ExpiredMarks
from onceonly.documents.retention import StoredRetention
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.identity import hash_of
from onceonly.model.token import Token
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Expires
from onceonly.runtime.environment import Environment

ISSUED_KEPT = timedelta(days=7)
"""How long tokens of messages from outside are known to have been issued, in a place for documents."""


def admission_by_marks(
    documents: Documents, endpoint: str, plan: DeduplicationPlan, *, clock: Clock, stored: StoredRetention
) -> AdmissionParts:
    """Return what knows messages by marks in the documents of a plan that has some."""
    assert plan.marks is not None  # noqa: S101 - see above
    assert plan.retention is not None  # noqa: S101 - the same
    done = DocumentMarkStore(documents, retention=plan.retention, clock=clock, stored=stored)
    return AdmissionParts(DedupStoreAdmission(endpoint, done), marks=_expiring(plan.marks, documents, done))


def admission_by_tokens(documents: Documents, settings: Settings, environment: Environment) -> AdmissionParts:
    """Return what handles messages with a live token. The tokens are in documents, or in the store."""
    plan, drops = settings.plan, drops_of(documents, settings.name)
    subscribers = plan.subscribers or {}
    if plan.tokens_in_store:
        return AdmissionParts(TokensInStore(subscribers, environment.ids), drops=drops)
    tokens = DocumentTokens(documents, clock=environment.clock)
    return AdmissionParts(TokenAdmission(settings.name, tokens, subscribers, environment.ids), tokens, drops)


def drops_of(documents: Documents, endpoint: str) -> DocumentCounter:
    """Return the count of an endpoint's messages that came without a live token."""
    return DocumentCounter(documents, f"no-live-token/{endpoint}")


def _expiring(place: Location, documents: Documents, done: DocumentMarkStore) -> Expires | None:
    """Return what removes old marks, where the service does not do that on its own."""
    if not place.system.drops_expired:
        return ExpiredMarks(done)
    return cast("Expires", documents) if hasattr(documents, "remove_expired") else None


class DocumentIssuer(DocumentTokens):
    """Tokens in a place for documents, with a mark for each that was issued."""

    def __init__(self, documents: Documents, *, clock: Clock) -> None:
        """Use a place for documents; the clock says until when marks are kept."""
        super().__init__(documents, clock=clock)
        self._issued = DocumentMarkStore(documents, retention=ISSUED_KEPT, clock=clock)

    async def add_once(self, tokens: list[Token]) -> None:
        """Make those live that have no mark; see the protocol.

        Crash here: 1 tokens live, 2 no mark, 3 no message sent, 4 the next run makes the same tokens live and sends. Two runs
        at the same moment may both find no mark, and one of them make a token live that was consumed by then.
        """
        names = {hash_of(token.endpoint.encode(), token.id.encode()): token for token in tokens}
        known = await self._issued.contains([*names])
        fresh = [name for name in names if name not in known]
        if fresh:
            await self.add([names[name] for name in fresh])
            await self._issued.add(fresh)
            await self._issued.sweep()
