"""The sweeper: removes what attempts left behind that were never committed (protocols, sections 5 and 6).

A token that was prepared long ago belongs to an attempt that was committed and never finished, or to one that never was. The
owner's record tells. No record may mean that it is about to be written: so first the owner is *fenced*, which no attempt that
began before survives; only then its tokens are removed. Without the fence, messages are lost.
"""

from onceonly.model.errors import CommitRefused, Conflict, TryAgain
from onceonly.model.token import Prepared
from onceonly.ports.bundle import Ports
from onceonly.ports.token_store import TokenStore


async def sweep(tokens: TokenStore, older_than: int, limit: int, ports: Ports) -> int:
    """Remove tokens that this endpoint prepared before `older_than` (milliseconds since 1970) and can never confirm.

    Gives how many there were. It looks at `limit` of them, and at more when none of those was its to remove: those of an
    endpoint that is away must not stand before all others. Raises Failed, Unknown: what is left is found again.
    """
    swept, looked, is_away = 0, 0, False
    while not swept and not is_away:
        found = await tokens.prepared(older_than, limit)
        for prepared in found[looked:]:
            if prepared.owner.endpoint != ports.endpoint:
                continue
            try:
                is_hopeless = await _is_hopeless(prepared, ports)
            except (Conflict, CommitRefused):  # somebody is at it, or made its document unreadable
                continue
            except TryAgain:
                is_away = True
                continue
            if is_hopeless:
                await tokens.discard([prepared.token])
                swept += 1
        if len(found) < limit:
            break
        looked, limit = len(found), limit * 2
    return swept


async def _is_hopeless(prepared: Prepared, ports: Ports) -> bool:
    """Tell whether no attempt that knows this token was or ever will be committed."""
    record = await ports.store.fence(prepared.owner.unit, prepared.owner.identity)
    return record is None or prepared.token not in record.minted
