"""Reaching servers for a command: a person is looking, so it says soon that one is away, and which."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from onceonly.assembly import shown
from onceonly.model.errors import CommitFailed, RetryableError, SetupError

ANSWER_SECONDS = 15.0
"""Seconds that a server may take to answer a look."""

ANY_TIME = math.inf
"""For what may take long when it works, such as changing large tables; drivers have a limit of their own for connecting."""

_Opened = TypeVar("_Opened")


@asynccontextmanager
async def reached(role: str, setting: object, opening: AbstractAsyncContextManager[_Opened]) -> AsyncIterator[_Opened]:
    """Enter `opening`, which opens the place that a setting names. Raises what it raises; RetryableError names the place."""
    async with AsyncExitStack() as stack:
        async with answering(role, setting):
            opened = await stack.enter_async_context(opening)
        yield opened


@asynccontextmanager
async def answering(role: str, setting: object, seconds: float | None = None) -> AsyncIterator[None]:
    """Enclose a look at the place that a setting names.

    Raises CommitFailed when it takes too long. RetryableError and SetupError get the name of the place.
    """
    place = f"{role.replace('_', ' ')} {shown(setting)}"
    patience = ANSWER_SECONDS if seconds is None else seconds
    limit = asyncio.timeout(patience)
    try:
        async with limit:
            yield
    except RetryableError as error:
        if str(error).startswith("endpoint "):  # it names the place that does not answer, which may be another one
            raise
        raise type(error)(f"cannot reach {place}: {error}") from error
    except SetupError as error:
        if shown(setting) in str(error):
            raise
        raise type(error)(f"cannot use {place}: {error}") from error
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise CommitFailed(f"cannot reach {place}: no answer for {patience:g} s") from error
