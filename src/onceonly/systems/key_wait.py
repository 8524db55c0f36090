"""Waiting for the holder of a client's key, and for no longer than was asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.model.errors import ConflictError
from onceonly.model.transaction import TransactionAttempt


@asynccontextmanager
async def key_wait(opening: TransactionAttempt) -> AsyncIterator[None]:
    """Enclose what waits for another transaction that has the key.

    Raises ConflictError when that takes longer than was asked.
    """
    if opening.wait is None or not opening.key:
        yield
        return
    limit = asyncio.timeout(opening.wait / 1000)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ConflictError(f"another transaction used this idempotency key for more than {opening.wait} ms") from error
