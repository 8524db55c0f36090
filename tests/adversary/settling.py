"""One hostile message, fifty good ones behind it, and what must have become of all of them."""

import os
import time
from collections.abc import Awaitable, Callable

from tests.adversary.harness import GOOD, Place
from tests.adversary.wire_cases import DEAD, HANDLED

PATIENCE = float(os.environ.get("ADVERSARY_PATIENCE", "120"))


async def settled(place: Place, send: Callable[[], Awaitable[None]], expected: str, *, dead: int = 1) -> float:
    """Send, and wait until it and the good messages behind it are settled; returns the seconds of the good ones.

    A case that fails leaves a new worker and an empty queue behind, so that the next case is judged by itself.
    """
    handled_before, letters_before = await place.handled(), len(await place.dead())
    await send()
    since = time.monotonic()
    await place.good(GOOD)

    async def all_is_settled() -> bool:
        handled, letters = await place.handled() - handled_before, len(await place.dead()) - letters_before
        return handled >= GOOD and handled + letters >= GOOD + dead

    try:
        await place.until(all_is_settled, f"one hostile message ({expected}) and {GOOD} good ones", patience=PATIENCE)
        latency = time.monotonic() - since
        handled, letters = await place.handled() - handled_before, (await place.dead())[letters_before:]
        assert handled + len(letters) == GOOD + dead, f"settled more than once: {handled} handled, dead letters {letters}"
        if expected == HANDLED:
            assert not letters, f"given up: {letters}"
        if expected == DEAD:
            assert handled == GOOD, "a hostile message was handled"
        assert all(letters), "a dead letter without a reason"
    except BaseException:
        await place.renew()
        raise
    return latency
