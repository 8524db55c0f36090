"""Runs confirmed actions in the background, also those that another process has left; and one-time numbers of forms."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from msgspec.structs import replace

from onceonly.assembly import look_at_ring, open_dead_letters, open_transport
from onceonly.assembly.looking import looked_at
from onceonly.assembly.opened import BucketClock
from onceonly.assembly.token_issuer import open_token_issuer
from onceonly.dashboard.auditing import Auditor
from onceonly.dashboard.gate import Refused
from onceonly.dashboard.watching import WatchedEndpoint
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.operations.actions import ActionParts, ActionRunner
from onceonly.operations.finding import know
from onceonly.ports.lookup import Knowledge

NONCES = 10_000
SENT_BEFORE = "This form was sent before. Open the page again to see what happened."
RESUME_SECONDS = 30.0

_log = EventLogger(logging.getLogger("onceonly.dashboard"))


@asynccontextmanager
async def open_parts(watched: WatchedEndpoint, *, sends: bool = True) -> AsyncIterator[ActionParts]:
    """Open what actions on the letters of an endpoint need. Without `sends` nothing can be sent.

    Raises SetupError, RetryableError.
    """
    settings, environment = watched.settings, watched.environment
    own = settings.store if settings.dead_letters is None else settings.dead_letters
    async with AsyncExitStack() as stack:
        letters = await stack.enter_async_context(open_dead_letters(looked_at(own), environment=environment))
        opened = await stack.enter_async_context(watched.open_operations())

        async def known(messages: Sequence[Message]) -> Sequence[Knowledge]:
            return await know(opened, messages)

        parts = ActionParts(
            letters=letters,
            log=watched.log_of(letters),
            endpoint=watched.name,
            know=known,
            cut=partial(_cut_of, settings.store) if settings.places.store.is_sql else _unknown,
            environment=environment,
        )
        if sends:
            opening = open_transport(settings.transport, watched.name, environment=environment)
            parts = replace(parts, transport=await stack.enter_async_context(opening))
            if settings.plan.tokens is not None:
                parts = replace(parts, tokens=await stack.enter_async_context(open_token_issuer(settings)))
        yield parts


async def _cut_of(store: Any) -> BucketClock | None:
    try:
        return await look_at_ring(looked_at(store))
    except OnceOnlyError:  # the letters may be elsewhere
        return None


async def _unknown() -> BucketClock | None:
    return None


class Acting:
    """The actions that this process runs, each in a task. When the process ends, another one continues after 30 seconds."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def start(self, watched: WatchedEndpoint, position: int) -> None:
        """Run an action, unless this process runs it already."""
        key = (watched.name, position)
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(watched, position), name="onceonly dashboard action")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def resume(self, watched: WatchedEndpoint) -> None:
        """Run what another process has left. Raises CommitFailed, OutcomeUnknown."""
        async with watched.open_letters() as letters:
            found = await watched.log_of(letters).abandoned(watched.environment.clock.now())
        for action in found:
            if action.endpoint == watched.name:
                self.start(watched, action.position)

    async def settled(self) -> None:
        """Wait until no action runs in this process."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def stop(self) -> None:
        """End all tasks. The actions stay as they are stored."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, watched: WatchedEndpoint, position: int) -> None:
        try:
            async with open_parts(watched) as parts:
                self._auditor.ended(await ActionRunner(parts).run(position))
        except OnceOnlyError as error:
            _log.warning(
                "operator action interrupted", extra={"endpoint": watched.name, "action": position, "reason": str(error)}
            )
        except Exception as error:  # noqa: BLE001 - a task's error is logged, and the action is resumed
            _log.exception("operator action failed", extra={"endpoint": watched.name, "action": position, "error": str(error)})


class Nonces:
    """Numbers that each confirm one thing once. The last 10,000 that were used are remembered, in this process.

    Actions store theirs, so other processes refuse them as well.
    """

    def __init__(self) -> None:
        self._used: OrderedDict[str, None] = OrderedDict()

    def issue(self) -> str:
        """Return a new one."""
        return secrets.token_urlsafe(12)

    def use(self, nonce: str) -> None:
        """Use it. Raises Refused the second time."""
        if not nonce or nonce in self._used:
            raise Refused(HTTPStatus.CONFLICT, SENT_BEFORE)
        self._used[nonce] = None
        while len(self._used) > NONCES:
            self._used.popitem(last=False)
