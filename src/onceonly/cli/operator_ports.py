"""Dead letters, stored actions, the queue, tokens, and what the endpoint knows: opened for commands about dead letters."""

import getpass
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from msgspec.structs import replace

from onceonly.assembly import open_dead_letters, open_own_transport, open_transport, read_bucket_clock
from onceonly.assembly.deduplication import open_token_issuer
from onceonly.assembly.operations import open_operations
from onceonly.assembly.parts import BucketClock
from onceonly.assembly.stores import read_only
from onceonly.cli.targets import CommandTarget, connect, connection_errors, transport_of
from onceonly.config.location import locate
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.operations.actions import HEAD_START_SECONDS, ActionParts, Operator, action_log_of
from onceonly.operations.knowledge import know
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.operators import Knowledge
from onceonly.systems import Family


def operator() -> Operator:
    """Return who runs the command: the user of this machine."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        name = "unknown"
    return Operator(f"{name}@{socket.gethostname()}", "cli")


def open_letters(target: CommandTarget, *, reads: bool = False) -> AbstractAsyncContextManager[DeadLetters]:
    """Open the dead letters of a target. With `reads`, a database that does not exist is not created."""
    setting = read_only(target.dead_letters) if reads else target.dead_letters
    return connect("dead_letters", setting, open_dead_letters(setting))


@asynccontextmanager
async def open_operator_ports(target: CommandTarget, *, sends: bool = False, knows: bool = False) -> AsyncIterator[ActionParts]:
    """Open what a command needs: to send, the queue; with `knows`, what the endpoint knows about messages.

    Raises SetupError, RetryableError, which name the location.
    """
    settings = target.settings
    async with AsyncExitStack() as stack:
        letters = await stack.enter_async_context(open_letters(target))
        parts = ActionParts(
            letters=letters,
            log=action_log_of(letters),
            endpoint=target.name,
            bucket_clock=partial(_bucket_clock_of, target.store),
            head_start=HEAD_START_SECONDS,
            receives_from="" if settings is None or settings.receives_from is None else str(settings.receives_from),
        )
        if sends:
            transport = transport_of(target)
            own = open_transport(transport, "cli") if settings is None else open_own_transport(settings)
            parts = replace(parts, transport=await stack.enter_async_context(connect("transport", transport, own)))
        if settings is not None and settings.plan.tokens is not None:
            issuing = connect("tokens", settings.plan.tokens, open_token_issuer(settings))
            parts = replace(parts, tokens=await stack.enter_async_context(issuing))
        if settings is not None and (knows or settings.plan.tokens is not None):
            opened = await stack.enter_async_context(connect("store", settings.store, open_operations(settings)))

            async def known(messages: Sequence[Message]) -> Sequence[Knowledge]:
                return await know(opened, messages)

            parts = replace(parts, know=known)
        yield parts


async def _bucket_clock_of(store: object) -> BucketClock | None:
    """Return how a store divides time. None if it does not, or cannot be read now."""
    if locate(store, "store").family is not Family.SQL:
        return None
    try:
        async with connection_errors("store", store):
            return await read_bucket_clock(read_only(store))
    except OnceOnlyError:  # the letters may be elsewhere
        return None
