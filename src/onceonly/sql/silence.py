"""Connections whose server is silent, so that no wait for an answer is endless.

Drivers wait for an answer without a limit. A fixed limit would end long statements that work. So a connection that has been
silent for a while is checked through a second one: the server reports whether it still executes the statement. If it does not,
the server ends the session, which releases its locks, and the connection is dropped: what waits for it fails.
"""

import asyncio
from collections.abc import Awaitable, Callable

SILENCE_SECONDS = 5.0
"""Seconds without an answer until a connection is checked, and between two checks of one whose statement is executed."""
CHECK_SECONDS = 2.0
"""Seconds that a check may take."""
CHECKS = 2
"""Checks in a row that find nothing executed, or no server, after which a connection is lost."""
RECHECK_SECONDS = 1.0
"""Seconds between such checks."""
LONGEST_STATEMENT_SECONDS = 60.0
"""Seconds that a statement may take where the server cannot be asked about it, behind a pooler or a proxy."""


async def is_lost(
    is_busy: Callable[[], Awaitable[bool]], limit: Callable[[], float | None], *, is_answered: Callable[[], bool]
) -> bool:
    """Check a silent connection again and again. Return true when it is lost, false when it `is_answered`.

    `is_busy` asks the server whether it executes the statement. `limit` is the time of the event loop at which the connection
    is lost whatever the answer; None for no such time.
    """
    bad = 0
    while bad < CHECKS:
        busy = await is_busy()
        if is_answered():
            return False
        end = limit()
        is_too_long = end is not None and asyncio.get_running_loop().time() > end
        bad = CHECKS if is_too_long else 0 if busy else bad + 1
        if bad < CHECKS:
            await asyncio.sleep(RECHECK_SECONDS if bad else SILENCE_SECONDS)
    return True
