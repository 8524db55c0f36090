"""Opens what operators read of one endpoint, without running it and without its queue."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from onceonly.assembly.deduplication import open_admission
from onceonly.assembly.stores import errors_name_setting, open_dead_letters, open_read_only
from onceonly.config.endpoint import Settings
from onceonly.ports.admission import Admission
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.effects import Register
from onceonly.ports.maintenance import MessageJournal
from onceonly.ports.operators import Lookup
from onceonly.ports.ring import Ring
from onceonly.ports.store import PendingRecords
from onceonly.runtime.environment import LIVE, Environment


class OpenedOperations(NamedTuple):
    """What can be read of one endpoint. Each part is None where the endpoint has no such thing, or it cannot be searched."""

    endpoint: str
    letters: DeadLetters
    lookup: Lookup | None = None
    admission: Admission | None = None
    """Asked for messages that the store does not know: a dedup store, or tokens elsewhere."""
    by_token: bool = False
    """Whether the admission knows messages by their tokens only."""
    pending: PendingRecords | None = None
    register: Register | None = None
    ring: Ring | None = None
    message_journal: MessageJournal | None = None


@asynccontextmanager
async def open_operations(settings: Settings, *, environment: Environment = LIVE) -> AsyncIterator[OpenedOperations]:
    """Open the store, the dead letters and the deduplication of an endpoint, to look. Raises SetupError, RetryableError."""
    places = settings.places
    async with AsyncExitStack() as stack:
        with errors_name_setting(settings, "store", places.store):
            opened = await stack.enter_async_context(open_read_only(settings, environment=environment))
        letters = opened.dead_letters
        if places.dead_letters is not places.store:
            with errors_name_setting(settings, "dead_letters", places.dead_letters):
                opening = open_dead_letters(places.dead_letters, environment=environment)
                letters = await stack.enter_async_context(opening)
        elsewhere = settings.plan.marks is not None or (settings.plan.tokens is not None and not settings.plan.tokens_in_store)
        deciding = await open_admission(stack, settings, environment) if elsewhere else None
        yield OpenedOperations(
            settings.name,
            letters,
            opened.lookup,
            deciding.admission if deciding else None,
            settings.plan.tokens is not None,
            opened.pending,
            opened.register,
            opened.ring,
            opened.message_journal,
        )
