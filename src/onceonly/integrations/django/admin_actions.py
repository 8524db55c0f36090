"""Retry and delete of dead letters from the admin: the operations of the command line, stored with the user's name."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from onceonly.assembly import open_dead_letters, open_own_transport, read_bucket_clock
from onceonly.assembly.deduplication import open_token_issuer
from onceonly.assembly.operations import open_operations
from onceonly.assembly.parts import BucketClock
from onceonly.assembly.stores import read_only
from onceonly.config.endpoint import Settings
from onceonly.integrations.django.admin_reading import endpoint_of
from onceonly.integrations.django.configuration import store_url
from onceonly.model.action import ActionKind, ActionScope, ItemOutcome
from onceonly.model.errors import CommitFailed, OnceOnlyError, SetupError
from onceonly.model.message import Message
from onceonly.operations.action_runner import ActionRunner
from onceonly.operations.actions import ActionParts, Operator, action_log_of, begin, confirmed_before, new_action
from onceonly.operations.knowledge import know
from onceonly.ports.operators import Knowledge

METHOD = "django"
"""The method by which the operator was authenticated, in stored actions."""
ANSWER_SECONDS = 15.0
"""Seconds that the database and the broker may take to be opened."""


class ActionResult(NamedTuple):
    """What became of an action on the letters of one endpoint. `kept` says why letters are still there, by their keys.

    `number` is that of the stored action, and `problem` says why it was not finished.
    """

    endpoint: str
    number: int = 0
    done: int = 0
    kept: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def perform(kind: ActionKind, keys: dict[str, list[str]], *, alias: str, user: str, form: str) -> tuple[ActionResult, ...]:
    """Retry or delete letters, whose keys are given by endpoint. A form that was sent twice acts once.

    It uses connections of its own, and returns when all letters are done. An error ends the action on one endpoint.
    """
    return asyncio.run(_perform(kind, keys, alias, Operator(user, METHOD, form)))


async def _perform(kind: ActionKind, keys: dict[str, list[str]], alias: str, by: Operator) -> tuple[ActionResult, ...]:
    results = []
    for endpoint, own in sorted(keys.items()):
        try:
            async with _opened(endpoint, alias, sends=kind is ActionKind.RETRY) as parts:
                results.append(await _act(parts, kind, own, replace(by, form=f"{by.form} {endpoint}")))
        except OnceOnlyError as error:
            results.append(ActionResult(endpoint, problem=str(error)))
    return tuple(results)


async def _act(parts: ActionParts, kind: ActionKind, keys: Sequence[str], by: Operator) -> ActionResult:
    if await confirmed_before(parts.log, by.form):
        return ActionResult(parts.endpoint, problem="this form was sent before, and its action is not repeated")
    action = replace(new_action(by, kind, parts.endpoint, ActionScope(keys=tuple(keys))), total=len(keys))
    ended = await ActionRunner(parts).run((await begin(parts.log, action)).position)
    items = await parts.log.items(ended.position, outcome=ItemOutcome.KEPT, limit=len(keys))
    return ActionResult(parts.endpoint, ended.position, ended.done, tuple((item.letter, item.detail) for item in items))


@asynccontextmanager
async def _opened(name: str, alias: str, *, sends: bool) -> AsyncIterator[ActionParts]:
    """Open what an action needs. Letters of an endpoint that the project does not have can be deleted only."""
    endpoint = endpoint_of(name, alias)
    if endpoint is None and sends:
        raise SetupError(f"endpoint {name!r} is unknown, so its transport is: add it to ENDPOINTS of ONCEONLY in the settings")
    settings = None if endpoint is None else endpoint.settings
    async with AsyncExitStack() as stack:
        limit = asyncio.timeout(ANSWER_SECONDS)
        try:
            async with limit:
                parts = await _open(stack, name, store_url(alias) if settings is None else settings, sends=sends)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise CommitFailed(f"endpoint {name!r}: no answer for {ANSWER_SECONDS:g} s") from error
        yield parts


async def _open(stack: AsyncExitStack, name: str, where: Settings | str, *, sends: bool) -> ActionParts:
    store = where if isinstance(where, str) else where.store
    letters = await stack.enter_async_context(open_dead_letters(read_only(store)))
    parts = ActionParts(letters=letters, log=action_log_of(letters), endpoint=name, bucket_clock=partial(_clock_of, store))
    if isinstance(where, str):
        return parts
    parts = replace(parts, receives_from="" if where.receives_from is None else str(where.receives_from))
    if sends:
        _ = where.required_transport
        parts = replace(parts, transport=await stack.enter_async_context(open_own_transport(where)))
    if where.plan.tokens is None:
        return parts
    opened = await stack.enter_async_context(open_operations(where))

    async def known(messages: Sequence[Message]) -> Sequence[Knowledge]:
        return await know(opened, messages)

    return replace(parts, tokens=await stack.enter_async_context(open_token_issuer(where)), know=known)


async def _clock_of(store: object) -> BucketClock | None:
    try:
        return await read_bucket_clock(read_only(store))
    except OnceOnlyError:  # it is not there, or does not answer: the endpoint decides
        return None
