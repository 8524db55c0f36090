"""What commands that change dead letters work on: letters, stored actions, the queue, tokens, and what the endpoint knows."""

import getpass
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from msgspec.structs import replace

from onceonly.assembly import look_at_ring, open_dead_letters, open_transport
from onceonly.assembly.looking import looked_at
from onceonly.assembly.opened import BucketClock
from onceonly.assembly.operations import open_operations
from onceonly.assembly.token_issuer import open_token_issuer
from onceonly.cli.places import CommandTarget, transport_of
from onceonly.cli.reaching import answering, reached
from onceonly.config.location import locate
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.operations.actions import ActionParts, Operator, action_log_of
from onceonly.operations.finding import know
from onceonly.operations.letters import HEAD_START_SECONDS
from onceonly.ports.lookup import Knowledge


def operator() -> Operator:
    """Return who runs the command: the user of this machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        name = "unknown"
    return Operator(f"{name}@{socket.gethostname()}", "cli")


@asynccontextmanager
async def opened_parts(
    place: CommandTarget, *, sends: bool = False, knows: bool = False, head_start: float = HEAD_START_SECONDS
) -> AsyncIterator[ActionParts]:
    """Open what a command needs: to send, the queue; with `knows`, what the endpoint knows about messages.

    Raises SetupError, RetryableError, which name the place.
    """
    settings = place.settings
    async with AsyncExitStack() as stack:
        opening = reached("dead_letters", place.dead_letters, open_dead_letters(place.dead_letters))
        letters = await stack.enter_async_context(opening)
        parts = ActionParts(
            letters=letters,
            log=action_log_of(letters),
            endpoint=place.name,
            cut=partial(cut_of, place.store),
            head_start=head_start,
        )
        if sends:
            transport = transport_of(place)
            opening_queue = reached("transport", transport, open_transport(transport, place.name or "cli"))
            parts = replace(parts, transport=await stack.enter_async_context(opening_queue))
        if settings is not None and settings.plan.tokens is not None:
            issuing = reached("tokens", settings.plan.tokens, open_token_issuer(settings))
            parts = replace(parts, tokens=await stack.enter_async_context(issuing))
        if settings is not None and (knows or settings.plan.tokens is not None):
            opened = await stack.enter_async_context(reached("store", settings.store, open_operations(settings)))

            async def known(messages: Sequence[Message]) -> Sequence[Knowledge]:
                return await know(opened, messages)

            parts = replace(parts, know=known)
        yield parts


async def cut_of(store: object) -> BucketClock | None:
    """Return how a store divides time. None if it does not, or cannot be read now."""
    if not locate(store, "store").is_sql:
        return None
    try:
        async with answering("store", store):
            return await look_at_ring(looked_at(store))
    except OnceOnlyError:  # the letters may be elsewhere
        return None
