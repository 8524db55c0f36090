"""Broken versions of claims that are forgotten: labels, rotation, and what becomes of undecidable messages."""

from onceonly_verify.mutants.known_bad import Mutant, delivery
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import (
    add_argument,
    add_element,
    add_parameter,
    define,
    drop,
    drop_filter,
    drop_operand,
    imports,
    insert_after,
    insert_before,
    never,
    replace,
)
from onceonly_verify.mutations.places import (
    argument,
    branch,
    call,
    comparison,
    condition,
    iterated,
    named,
    operand,
    point,
    result_of,
    returned,
    right,
    root,
    source_of,
)

QUIET = "a ring, copies that come late, and nothing to send"
LATE, NEXT = "a ring, and copies that come late", "a ring, and a bucket's next slice"
BUCKET, LATE_OPTIMISTIC = "a ring, two slices of one bucket", "a ring, and copies that come late, optimistic store"
HEADERS, FOREIGN = "a ring, and one message with two headers", "a ring, and one message of another sender with two headers"
BEFORE = "a ring, and what an older version has handled"


def ring(function: str, *operations: EditOperation) -> CodeChange:
    """Change the memory store that forgets."""
    return change("adapters.memory.ring", function, *operations)


_ALTHOUGH_PENDING = drop(branch(condition("world.records")))
_ROTATED_MEANWHILE = ring("commit", never(condition("world.buckets")))
_REFUSED = iterated("give_up")


def in_two_steps(first: str, second: str) -> tuple[CodeChange, ...]:
    """Rotate in two calls: `first` and `second` give a bucket from what it held and what it should hold.

    The first one locks and looks as ever; the second waits for nobody but units at work, and looks at nothing.
    """
    return (
        ring(
            "MemoryRing.rotate",
            replace(argument(point("rotate"), 2), "first_step"),
            insert_after(
                point("rotate"),
                """
if found is Rotation.ROTATED:
    found = await self._driver.perform(PortOperation('rotate-on', self._store.place, second_step, arguments))
""",
                found=result_of(point("rotate")),
                arguments=argument(point("rotate"), 3),
            ),
        ),
        ring(
            "",
            define(f"""
def first_step(world, number, dial):
    outcome = rotate(world, number, dial)[1]
    held, wanted = world.buckets[number], dial.bucketing.wanted(number, dial.now)
    after = {first} if outcome is Rotation.ROTATED else held
    return replace(world, buckets=(*world.buckets[:number], after, *world.buckets[number + 1 :])), outcome
"""),
            define(f"""
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


RINGS: tuple[Mutant, ...] = (
    Mutant(
        "retention shorter than redelivery",
        (LATE,),
        (
            ring(
                "rotate",
                replace(argument("bucketing.wanted", 1), "old + dial.bucketing.retention"),
                replace(operand("may_forget"), "False"),
            ),
        ),
    ),
    Mutant(
        "undispatched record evicted",
        (BUCKET,),
        (
            ring(
                "rotate",
                _ALTHOUGH_PENDING,
                add_argument(
                    "replace",
                    "records",
                    "tuple(w for w in world.records if w.slice != held.start)",
                    held=root(argument("may_forget", 0)),
                ),
            ),
        ),
    ),
    Mutant("slice of an undispatched record forgotten", (LATE,), (ring("rotate", _ALTHOUGH_PENDING),)),
    Mutant("label not checked", (QUIET,), (ring("_undecidable", replace(returned(), "()")), _ROTATED_MEANWHILE)),
    Mutant(
        "label read by an earlier SELECT",
        (QUIET,),
        (
            ring(
                "MemoryRingStore.begin",
                insert_before(point("begin"), "seen = await self._perform('labels', labels, (tuple(messages), self.dial()))"),
                add_element(argument(point("begin"), 2), 2, "seen"),
            ),
            ring("begin", add_parameter("seen", before="dial"), replace("_undecidable", "seen")),
            _ROTATED_MEANWHILE,
            ring(
                "",
                define("""
def labels(world, messages, dial):
    slices = {m.identity: start for m in messages if (start := dial.slice_of(m)) is not None}
    return world, _undecidable(world, messages, slices, dial)
"""),
            ),
        ),
    ),
    Mutant(
        "label committed by a unit",
        (QUIET,),
        (
            ring(
                "begin",
                insert_before(
                    "replace",
                    """
offered = {dial.bucketing.bucket(m.instant): dial.slice_of(m) for m in messages if m.identity in shut}
buckets = tuple(replace(held, start=offered.get(number, held.start)) for number, held in enumerate(world.buckets))
""",
                    shut=right(argument("OpenRingUnit", "both")),
                ),
                add_argument(call("replace", passing="open"), "buckets", "buckets"),
            ),
        ),
    ),
    Mutant("truncate then relabel", (QUIET,), in_two_steps("BucketContent(held.start)", "BucketContent(wanted, held.claims)")),
    Mutant("relabel then truncate", (NEXT,), in_two_steps("BucketContent(wanted, held.claims)", "BucketContent(held.start)")),
    Mutant("two janitors without a lock", (NEXT,), in_two_steps("held", "BucketContent(wanted)")),
    Mutant("a unit committed into a bucket that was rotated", (LATE_OPTIMISTIC,), (_ROTATED_MEANWHILE,)),
    Mutant(
        "waiting for a bucket counted as a failure",
        (NEXT,),
        (delivery("_undecidable", replace(argument(call("Failure", passing="delay"), "kind"), "FailureKind.EXCEPTION")),),
    ),
    Mutant(
        "what waits for its bucket refused",
        (NEXT,),
        (
            delivery(
                "_undecidable",
                replace(source_of(argument("_count", 0)), "[]"),
                drop_filter(condition("Undecidable.SLOT_NOT_READY")),
            ),
        ),
    ),
    Mutant(
        "instant taken from the header again",
        (HEADERS,),
        (
            ring("RingSettings.slice_of", replace(named("message.instant"), "read_instant(message.extension(INSTANT))")),
            ring("", imports("onceonly.model.ring", "INSTANT", "read_instant")),
        ),
    ),
    Mutant(
        "what another sender's header says taken for its instant",
        (FOREIGN,),
        (ring("RingSettings.slice_of", replace(named("message.instant"), "old or message.former_instant")),),
    ),
    Mutant(
        "the claim of an older version not looked for",
        (BEFORE,),
        (ring("RingSettings.former_slice_of", replace(named("message.former_instant"), "0")),),
    ),
    Mutant(
        "claimed where an older version does, and nowhere else",
        (FOREIGN,),
        (
            ring("commit", drop_operand(comparison("both"))),
            ring("_claims", drop_operand(comparison("both"))),
        ),
    ),
    Mutant(
        "a refused message acknowledged, and not kept",
        (BUCKET,),
        (
            delivery(
                "_undecidable",
                insert_after(
                    "give_up",
                    "await _ack([delivery for item, _ in finals for delivery in item.deliveries], ports)",
                    finals=_REFUSED,
                ),
                replace(_REFUSED, "()"),
            ),
        ),
    ),
)
