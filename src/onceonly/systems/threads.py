"""Blocking calls, for systems that have no asynchronous client."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["in_thread"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def in_thread(function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
    """Call a function in a thread, and return its result. Raises what the function raises.

    A cancelled call waits until the thread has finished. So nothing that the function writes appears after its caller has
    ended, for example when the caller deletes it.
    """
    work = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # read, so that asyncio does not report it as ignored
        raise
