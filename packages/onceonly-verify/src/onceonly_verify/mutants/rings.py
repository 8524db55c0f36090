"""Broken versions of claims that are forgotten: labels, rotation, and what becomes of undecidable messages."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant, settlement
from onceonly_verify.mutations import CodeChange, change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

QUIET = "a ring, copies that come late, and nothing to send"
LATE, NEXT = "a ring, and copies that come late", "a ring, and a bucket's next slice"
BUCKET, LATE_OPTIMISTIC = "a ring, two slices of one bucket", "a ring, and copies that come late, optimistic store"


ring = partial(change, "onceonly_verify.memory_ports.ring")
_ALTHOUGH_PENDING = do.drop(at.branch(at.condition("world.records")))
_ROTATED_MEANWHILE = ring("commit", do.never(at.condition("world.buckets")))
_REFUSED = at.iterated("give_up")


def in_two_steps(first: str, second: str) -> tuple[CodeChange, ...]:
    """Rotate in two calls: `first` and `second` give a bucket from what it held and what it should hold.

    The first one locks and looks as ever; the second waits for nobody but units at work, and looks at nothing.
    """
    return (
        ring(
            "MemoryRing.rotate",
            do.replace(at.argument(at.point("rotate"), 2), "first_step"),
            do.insert_after(
                at.point("rotate"),
                """
if found is Rotation.ROTATED:
    found = await self._driver.perform(PortOperation('rotate-on', self._store.place, second_step, arguments))
""",
                found=at.result_of(at.point("rotate")),
                arguments=at.argument(at.point("rotate"), 3),
            ),
        ),
        ring(
            "",
            do.define(f"""
def first_step(world, number, dial):
    outcome = rotate(world, number, dial)[1]
    held, wanted = world.buckets[number], dial.bucketing.wanted(number, dial.now)
    after = {first} if outcome is Rotation.ROTATED else held
    return replace(world, buckets=(*world.buckets[:number], after, *world.buckets[number + 1 :])), outcome
"""),
            do.define(f"""
def second_step(world, number, dial):
    used = {{dial.bucketing.bucket(start) for unit in world.open for _, start in unit.slices}}
    if dial.blocking and number in used:
        return None
    held, wanted = world.buckets[number], dial.bucketing.wanted(number, dial.now)
    after = {second}
    buckets = (*world.buckets[:number], after, *world.buckets[number + 1 :])
    return replace(world, buckets=buckets), Rotation.ROTATED
"""),
        ),
    )


RINGS = {
    "retention shorter than redelivery": mutant(
        (LATE,),
        ring(
            "rotate",
            do.replace(at.argument("bucketing.wanted", 1), "old + dial.bucketing.retention"),
            do.replace(at.operand("may_forget"), "False"),
        ),
    ),
    "undispatched record evicted": mutant(
        (BUCKET,),
        ring(
            "rotate",
            _ALTHOUGH_PENDING,
            do.add_argument(
                "replace",
                "records",
                "tuple(w for w in world.records if w.slice != held.start)",
                held=at.root(at.argument("may_forget", 0)),
            ),
        ),
    ),
    "slice of an undispatched record forgotten": mutant((LATE,), ring("rotate", _ALTHOUGH_PENDING)),
    "label not checked": mutant((QUIET,), ring("_undecidable", do.replace(at.returned(), "()")), _ROTATED_MEANWHILE),
    "label read by an earlier SELECT": mutant(
        (QUIET,),
        ring(
            "MemoryRingStore.begin",
            do.insert_before(at.point("begin"), "seen = await self._perform('labels', labels, (tuple(messages), self.dial()))"),
            do.add_element(at.argument(at.point("begin"), 2), 2, "seen"),
        ),
        ring("begin", do.add_parameter("seen", before="dial"), do.replace("_undecidable", "seen")),
        _ROTATED_MEANWHILE,
        ring(
            "",
            do.define("""
def labels(world, messages, dial):
    slices = {m.identity: start for m in messages if (start := dial.slice_of(m)) is not None}
    return world, _undecidable(world, messages, slices, dial)
"""),
        ),
    ),
    "label committed by a unit": mutant(
        (QUIET,),
        ring(
            "begin",
            do.insert_before(
                "replace",
                """
offered = {dial.bucketing.bucket(m.instant): dial.slice_of(m) for m in messages if m in [each.message for each in shut]}
buckets = tuple(replace(held, start=offered.get(number, held.start)) for number, held in enumerate(world.buckets))
""",
                shut=at.argument("BeginResult", "undecidable"),
            ),
            do.add_argument(at.call("replace", passing="open"), "buckets", "buckets"),
        ),
    ),
    "truncate then relabel": mutant((QUIET,), *in_two_steps("BucketContent(held.start)", "BucketContent(wanted, held.claims)")),
    "relabel then truncate": mutant((NEXT,), *in_two_steps("BucketContent(wanted, held.claims)", "BucketContent(held.start)")),
    "two janitors without a lock": mutant((NEXT,), *in_two_steps("held", "BucketContent(wanted)")),
    "a unit committed into a bucket that was rotated": mutant((LATE_OPTIMISTIC,), _ROTATED_MEANWHILE),
    "waiting for a bucket counted as a failure": mutant(
        (NEXT,),
        settlement(
            "_undecidable", do.replace(at.argument(at.call("Failure", passing="delay"), "kind"), "FailureKind.EXCEPTION")
        ),
    ),
    "what waits for its bucket refused": mutant(
        (NEXT,),
        settlement(
            "_undecidable",
            do.replace(at.source_of(at.argument("count_deliveries", 0)), "[]"),
            do.drop_filter(at.condition("Undecidable.SLOT_NOT_READY")),
        ),
    ),
    "a refused message acknowledged, and not kept": mutant(
        (BUCKET,),
        settlement(
            "_undecidable",
            do.insert_after(
                "give_up", "await ack([delivery for item, _ in finals for delivery in item.deliveries], ports)", finals=_REFUSED
            ),
            do.replace(_REFUSED, "()"),
        ),
    ),
}
