"""Runs confirmed actions in the background, also those that another process has left."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from onceonly.assembly import open_dead_letters, open_own_transport, read_bucket_clock
from onceonly.assembly.deduplication import open_token_issuer
from onceonly.assembly.parts import BucketClock
from onceonly.assembly.stores import read_only
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Message
from onceonly.operations.action_runner import ActionRunner
from onceonly.operations.actions import ActionParts
from onceonly.operations.knowledge import know
from onceonly.ports.operators import Knowledge
from onceonly_dashboard.auditor import RequestAuditor
from onceonly_dashboard.endpoint_probes import EndpointProbes

_log = EventLogger(logging.getLogger("onceonly.dashboard"))


@asynccontextmanager
async def open_parts(probes: EndpointProbes, *, sends: bool = True) -> AsyncIterator[ActionParts]:
    """Open what actions on the letters of an endpoint need. Without `sends` nothing can be sent.

    Raises SetupError, RetryableError.
    """
    settings, environment = probes.settings, probes.environment
    own = settings.store if settings.dead_letters is None else settings.dead_letters
    async with AsyncExitStack() as stack:
        letters = await stack.enter_async_context(open_dead_letters(read_only(own), environment=environment))
        opened = await stack.enter_async_context(probes.open_operations())

        async def look_up(messages: Sequence[Message]) -> Sequence[Knowledge]:
            return await know(opened, messages)

        parts = ActionParts(
            letters=letters,
            log=probes.log_of(letters),
            endpoint=probes.name,
            know=look_up,
            bucket_clock=partial(_read_clock, settings.store) if settings.store_plan.has_tables else None,
            environment=environment,
            receives_from="" if settings.receives_from is None else str(settings.receives_from),
        )
        if sends:
            _ = settings.required_transport
            opening = open_own_transport(settings, environment=environment)
            parts = replace(parts, transport=await stack.enter_async_context(opening))
            if settings.plan.tokens is not None:
                parts = replace(parts, tokens=await stack.enter_async_context(open_token_issuer(settings)))
        yield parts


async def _read_clock(store: Any) -> BucketClock | None:
    try:
        return await read_bucket_clock(read_only(store))
    except OnceOnlyError:  # the letters may be elsewhere
        return None


class ActionWorker:
    """The actions that this process runs, each in a task. When the process ends, another one continues after 30 seconds."""

    def __init__(self, auditor: RequestAuditor) -> None:
        self._auditor = auditor
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    def start(self, probes: EndpointProbes, position: int) -> None:
        """Run an action, unless this process runs it already."""
        key = (probes.name, position)
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(probes, position), name="onceonly dashboard action")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def resume(self, probes: EndpointProbes) -> None:
        """Run what another process has left. Raises CommitFailed, OutcomeUnknown."""
        async with probes.open_letters() as letters:
            found = await probes.log_of(letters).abandoned(probes.environment.clock.now())
        for action in found:
            if action.endpoint == probes.name:
                self.start(probes, action.position)

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

    async def _run(self, probes: EndpointProbes, position: int) -> None:
        try:
            async with open_parts(probes) as parts:
                self._auditor.ended(await ActionRunner(parts).run(position))
        except OnceOnlyError as error:
            _log.warning(
                "operator action interrupted", extra={"endpoint": probes.name, "action": position, "reason": str(error)}
            )
        except Exception as error:  # noqa: BLE001 - a task's error is logged, and the action is resumed
            _log.exception("operator action failed", extra={"endpoint": probes.name, "action": position, "error": str(error)})
