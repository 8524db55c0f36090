"""What the promised retention means, by the instants of the commits and the world's clock alone.

Nothing here reads what the code stored: no `done`, no `until`, no `expires`. The clock of the world is the reference, whatever
the clocks of the runs showed.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

from onceonly.adapters.memory.store import StoreWorld
from onceonly_verify.memory_ports.rings import RingsWorld
from onceonly_verify.names import name_of
from onceonly_verify.time_steps import CLOCK, STEP, clock_of_world
from onceonly_verify.workload import DeduplicationMode, RingChanges, Workload

Worlds = Mapping[str, Any]
FORGETTING = frozenset({DeduplicationMode.HISTORY, DeduplicationMode.DEDUP})
"""Where a copy that comes after the retention is a new message. Tokens never expire, so there no copy is ever new.

Only a copy without an instant is: one with an instant is refused instead, there and in a ring.
"""


def committed_rows(worlds: Worlds, endpoint: str, store: StoreWorld) -> Collection[tuple[str, str]]:
    """Return the rows that were ever committed at an endpoint: text and attempt."""
    return tuple(clock_of_world(worlds).times(endpoint)) if CLOCK in worlds else store.notes


def handled_after_retention(workload: Workload, worlds: Worlds, endpoint: str, name: str) -> bool:
    """Return whether a message was handled again only after the retention of the time before was over."""
    ringed = workload.deduplication is DeduplicationMode.RING and not any(
        each.instant for each in workload.arrivals if each.name == name
    )
    timed = any(each.instant for each in workload.arrivals if each.name == name)
    if workload.timing is None or timed or (workload.deduplication not in FORGETTING and not ringed):
        return False
    rows = clock_of_world(worlds).times(endpoint)
    times = sorted(at for (text, _), at in rows.items() if name_of(text) == name)
    return all(later - earlier > workload.timing.kept for earlier, later in pairwise(times))


def retention_over(workload: Workload, worlds: Worlds, endpoint: str) -> frozenset[tuple[str, str]]:
    """Return the rows whose messages may be unknown by now."""
    if workload.timing is None or workload.deduplication not in FORGETTING:
        return frozenset()
    clock = clock_of_world(worlds)
    kept = workload.timing.shortest
    return frozenset(row for row, at in clock.times(endpoint).items() if clock.now - at > kept)


def promised_in_rings(changes: RingChanges, rings: RingsWorld, instant: int) -> int:
    """Return from which age on a message of this instant may be refused: what holds now, if it was known when that was set.

    What was behind the horizon before a change stays behind it. In a ring that is shared, a lower one does not hold for what
    is claimed there.
    """
    kept = changes.before * STEP
    for at, slices, route in zip(rings.changed, changes.after, rings.routes[1:], strict=False):
        if at - instant > kept:
            break
        is_left = changes.is_shared and instant < route.since
        kept = max(kept, slices * STEP) if is_left else slices * STEP
    return kept


def lost_answers(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, for answers of committed attempts that are gone, although their retention is not over."""
    if workload.timing is None or not workload.clients:
        return
    endpoint = workload.endpoints[0]
    over = retention_over(workload, worlds, endpoint)
    known = {kept.attempt for _, kept in stores[endpoint].keys}
    for text, mark in clock_of_world(worlds).times(endpoint):
        key = workload.attempts[mark].key if mark in workload.attempts else ""
        if key and mark not in known and (text, mark) not in over:
            yield f"forgotten: the answer of attempt {mark} under key {key!r} is gone, and its retention is not over"


def hasty_tombstones(workload: Workload, worlds: Worlds, stores: Mapping[str, StoreWorld]) -> Iterator[str]:
    """Look, in every state, for attempts that a control message ended before their deadline."""
    if workload.timing is None or not workload.clients:
        return
    clock, endpoint = clock_of_world(worlds), workload.endpoints[0]
    committed = {mark for _, mark in clock.times(endpoint)}
    buried = {identity.id for identity in stores[endpoint].buried} - committed
    for attempt, at in sorted(clock.opened):
        if attempt in buried and clock.now - at <= workload.timing.max_commit * STEP:
            yield f"hasty: attempt {attempt} was given up before its deadline"


def late_commits(workload: Workload, worlds: Worlds) -> Iterator[str]:
    """Look, in every state, for transactions that were committed after their deadline, and after the last write could land."""
    timing = workload.timing
    if timing is None or not workload.clients:
        return
    clock = clock_of_world(worlds)
    opened, longest = dict(clock.opened), (timing.max_commit + timing.lifetime) * STEP
    for (_, mark), at in sorted(clock.times(workload.endpoints[0]).items()):
        if mark in opened and at - opened[mark] > longest:
            yield f"late: attempt {mark} was committed {(at - opened[mark]) // STEP} steps after its beginning"


def hasty_retries(workload: Workload, worlds: Worlds) -> Iterator[str]:
    """Look, in every state, for a retry that began before its delay was over.

    The check states the delays that its policy promises. Of several failures with one number, the earliest counts.
    """
    timing = workload.timing
    if timing is None or not timing.retry_after:
        return
    clock = clock_of_world(worlds)
    for endpoint, name, count, at in sorted(clock.retried):
        failed = [then for *who, then in clock.failed if who == [endpoint, name, count]]
        if failed and at - min(failed) < timing.retry_after[count - 1] * STEP:
            yield f"hasty: {name!r} was retried {(at - min(failed)) // STEP} steps after failure {count}"


def hasty_sweeps(workload: Workload, worlds: Worlds) -> Iterator[str]:
    """Look, in every state, for prepared tokens that a sweeper removed although their attempt was too young to be dead.

    Its clock may be ahead of the one that stamped the token, and the token may have arrived later than it was stamped.
    """
    timing = workload.timing
    if timing is None:
        return
    clock = clock_of_world(worlds)
    prepared, youngest = dict(clock.prepared), (timing.sweep_after - timing.difference - timing.lifetime) * STEP
    for token, at in sorted(clock.swept):
        if at - prepared[token] <= youngest:
            yield f"hasty: token {token.id!r} was swept {(at - prepared[token]) // STEP} steps after it was prepared"
