"""One run: every round of everything, then forgetting, in each database."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from benchmarks.retention import others, postgresql
from benchmarks.retention.emptying import emptying
from benchmarks.retention.findings import DatabaseFindings, Rate, Sizes
from benchmarks.retention.keys import Keys

RETENTION = 12 * 3600 * 1000
"""Milliseconds: twelve slices of one hour."""
READY = 6
"""For how many times the rate of the first round's claims batches are made ready beside an emptying."""

Say = Callable[[str], None]
_Item = TypeVar("_Item")


class RetentionSizes(Struct, frozen=True, kw_only=True):
    """Counts of claims, and how often to measure.

    Claims: in a full table, in each round, in a bucket that is rotated, in the other databases, and in one batch.
    """

    claims: int
    each: int
    bucket: int
    others: int
    rounds: int
    emptied: int
    deleted: int
    batch: int = 100


FULL = RetentionSizes(claims=5_000_000, each=100_000, bucket=1_000_000, others=500_000, rounds=5, emptied=9, deleted=3)
QUICK = RetentionSizes(claims=500_000, each=50_000, bucket=300_000, others=100_000, rounds=3, emptied=5, deleted=2)
TINY = RetentionSizes(claims=12_000, each=1_000, bucket=3_000, others=6_000, rounds=2, emptied=1, deleted=1)


def in_turn(items: Sequence[_Item], number: int) -> list[_Item]:
    """Return the items in the order of a round: another one is the first in each."""
    first = number % len(items)
    return [*items[first:], *items[:first]]


async def measure_postgresql(server_url: str, plan: RetentionSizes, say: Say) -> tuple[DatabaseFindings, str]:
    """Measure in PostgreSQL; gives its version as well."""
    async with postgresql.opened(server_url, RETENTION) as ground:
        say(f"PostgreSQL: {plan.bucket:,} claims in order, then shuffled")
        in_order, shuffled = await ground.sizes(plan.bucket)
        say(f"PostgreSQL: filling with {plan.claims:,} claims, and a classic table with as many")
        await ground.fill(plan.claims)
        sizes = Sizes(in_order=in_order, shuffled=shuffled, classic=await ground.size("classic"))
        found = DatabaseFindings(
            claims=plan.claims, batch=plan.batch, sizes=sizes, full=Rate(), empty=Rate(), classic=Rate(), classic_empty=Rate()
        )
        keys = ground.keys(seed=1)
        await ground.clear()
        for place in ground.places().values():  # nothing is measured before the server has read what it needs
            await ground.claim(place, keys.batches(plan.batch, plan.batch))
        for number in range(plan.rounds):
            await ground.clear()
            batches = keys.batches(plan.each, plan.batch)
            for name, place in in_turn([*ground.places().items()], number):
                await ground.write_out()
                claims, wal = await ground.claim(place, batches)
                rate: Rate = getattr(found, name)
                rate.claims.append(round(claims, 1))
                rate.wal.append(round(wal, 1))
                say(f"PostgreSQL: round {number + 1}: {name}: {claims:,.0f} claims/s, {wal:.0f} bytes of log each")
        for _ in range(plan.emptied):
            work = await ground.no_work()
            found.control.append(await emptying(ground, ground.full, work, batch=plan.batch, ready=READY * plan.each))
            say(f"PostgreSQL: control without a rotation: {found.control[-1].ratio:.2f} of the rate before and after")
            work = await ground.rotate_oldest(plan.bucket)
            found.emptied.append(await emptying(ground, ground.full, work, batch=plan.batch, ready=READY * plan.each))
            say(f"PostgreSQL: rotated {plan.bucket:,} claims in {found.emptied[-1].seconds:g} s, {found.emptied[-1].ratio:.2f}")
        for _ in range(plan.deleted):
            work = await ground.delete_oldest(min(plan.bucket, plan.claims // (plan.deleted + 1)))
            found.deleted.append(await emptying(ground, ground.classic, work, batch=plan.batch, ready=READY * plan.each))
            say(f"PostgreSQL: deleted from the classic table in {found.deleted[-1].seconds:g} s")
        return found, await ground.version()


async def measure_other(ground: others.ComparisonDatabase, name: str, plan: RetentionSizes, say: Say) -> DatabaseFindings:
    """Measure in another database: through the library, with nobody beside."""
    say(f"{name}: filling with {plan.others:,} claims, and a classic table with as many")
    keys = Keys(ground.start, ground.bucketing.width)
    empty, classic_empty, full, classic = Rate(), Rate(), Rate(), Rate()
    for into, beside in ((empty, classic_empty), (full, classic)):
        for _ in range(plan.rounds):
            rates = await ground.claim(keys.batches(plan.each // 10, plan.batch))
            into.claims.append(round(rates[0], 1))
            beside.claims.append(round(rates[1], 1))
        if into is empty:
            await ground.fill(plan.others)
    ring, table = await ground.sizes()
    return DatabaseFindings(
        claims=plan.others,
        batch=plan.batch,
        sizes=Sizes(in_order=ring, classic=table),
        full=full,
        empty=empty,
        classic=classic,
        classic_empty=classic_empty,
        emptied=[await ground.rotate()],
        deleted=[await ground.delete()],
    )
