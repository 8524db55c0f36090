"""The sweeper: removes what attempts left behind that were never committed (protocols, sections 5 and 6).

A token that was prepared long ago belongs to an attempt that was committed and never finished, or to one that never was. The
owner's record tells. No record may mean that it is about to be written: so first the owner is *fenced*, which no attempt that
began before survives; only then its tokens are removed. Without the fence, messages are lost.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from onceonly.model.errors import CommitRefused, ConflictError, PeerAway, RetryableError, UpgradeRequired
from onceonly.model.token import PreparedToken
from onceonly.ports.admission import TokenStore
from onceonly.ports.bundle import Ports

Left = TypeVar("Left")


async def sweep_each(
    page: Callable[[int], Awaitable[Sequence[Left]]], sweep_one: Callable[[Left], Awaitable[bool]], limit: int
) -> int:
    """Sweep what a page lists, one by one; returns how many that were. `sweep_one` returns whether it swept.

    It looks at `limit` of them, and at more when none of those could be swept: what stands in the way of some must not stand
    before all others. A peer that is away does, because each attempt may have asked it, and is not a failure. Raises
    CommitFailed, OutcomeUnknown when something is away and nothing was swept: what is left is found again.
    """
    swept, looked, waits = 0, 0, False
    away: RetryableError | None = None
    while not swept and away is None and not waits:
        found = await page(limit)
        for each in found[looked:]:
            try:
                swept += await sweep_one(each)
            except (ConflictError, CommitRefused, UpgradeRequired):  # somebody is at it, or made its document unreadable here
                continue
            except PeerAway:
                waits = True
            except RetryableError as error:
                away = error
        if len(found) < limit:
            break
        looked, limit = len(found), limit * 2
    if away is not None and not swept:
        raise away
    return swept


async def sweep(tokens: TokenStore, older_than: int, limit: int, ports: Ports) -> int:
    """Remove tokens that this endpoint prepared before `older_than` (milliseconds since 1970) and can never confirm.

    Gives how many there were. Those of other endpoints are theirs to remove. Raises CommitFailed, OutcomeUnknown.
    """

    async def sweep_one(prepared: PreparedToken) -> bool:
        if prepared.owner.endpoint != ports.endpoint or not await _is_hopeless(prepared, ports):
            return False
        await tokens.discard([prepared.token])
        return True

    return await sweep_each(lambda most: tokens.prepared(older_than, most), sweep_one, limit)


async def _is_hopeless(prepared: PreparedToken, ports: Ports) -> bool:
    """Return whether no attempt that knows this token was or ever will be committed."""
    record = await ports.fence.fence(prepared.owner.unit, prepared.owner.identity)
    return record is None or prepared.token not in record.issued
