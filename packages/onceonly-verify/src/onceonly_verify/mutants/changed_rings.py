"""Broken versions of a changed retention: where a ring ends, what its buckets hold then, and who claims in which ring."""

from functools import partial

from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutations import change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

RAISED, RAISED_END = (
    "rings, the retention is raised, late copies",
    "rings, the retention is raised, copies at the end of a ring",
)
LOWERED, LOWERED_END = (
    "rings, the retention is lowered, late copies",
    "rings, the retention is lowered, copies at the end of a ring",
)
TWICE, SHARED = (
    "rings, the retention is raised twice, late copies",
    "rings, the retention is lowered where the ring is shared, late copies",
)
SENDING = "rings, the retention is lowered, a message to send, and a crash"
LABELS, RAISED_LABELS = (
    "rings, the retention is lowered, labels behind their truncation",
    "rings, the retention is raised, labels behind their truncation",
)
BATCH = "rings, the retention is raised, two rings in one batch"

rings = partial(change, "onceonly_verify.memory_ports.rings")
_CUT = at.receiver("to_hold")

CHANGED_RINGS = {
    "a ring that is left gets labels of later slices": mutant(
        (LOWERED_END, RAISED_END), rings("rotate", do.replace(at.call("to_hold"), "cut.wanted(place[1], world.now)", cut=_CUT))
    ),
    "a ring that is left gets the label of a bucket's next slice": mutant(
        (LOWERED_END,),
        rings(
            "rotate",
            do.replace(at.call("to_hold"), "old if cut.bucket(old) == place[1] else old - cut.width", cut=_CUT),
        ),
    ),
    "a bucket of a ring that is left labelled anew after its truncation": mutant(
        (LABELS,),
        rings(
            "rotate",
            do.replace(
                at.call("to_hold"),
                "cut.wanted(place[1], world.now) if world.rings[place[0]].buckets[place[1]].start is None else old",
                cut=_CUT,
            ),
        ),
    ),
    "an empty bucket labelled by a longer retention": mutant(
        (RAISED_LABELS,), rings("_labelled", do.never(at.condition("start")))
    ),
    "routes not read again without a label": mutant(
        (RAISED_END, LOWERED_END),
        rings("MemoryRingsStore._check_bucket", do.replace_answer(at.point("routes"), "self._routes")),
    ),
    "routes read before the label": mutant(
        (RAISED_END, LOWERED_END), rings("MemoryRingsStore._check_bucket", do.swap(at.point("label"), at.point("routes")))
    ),
    "claims in a bucket without their label": mutant((RAISED_END, LOWERED_END), rings("begin", do.never(at.condition("held")))),
    "another ring from now on": mutant(
        (RAISED_END, RAISED), rings("change_retention", do.replace(at.argument("KnownRoute", 0), "world.now"))
    ),
    "a ring that ends before its last label": mutant(
        (RAISED_END, LOWERED_END), rings("change_retention", do.replace(at.argument("bucketing.closed", 0), "()"))
    ),
    "labels read before the ring is closed": mutant(
        (RAISED_END, LOWERED_END),
        rings(
            "MemoryRings.change",
            do.insert_before(at.point("ring-change"), "seen = await self._perform('ring-labels', read_labels, ())"),
            do.add_element(at.argument(at.point("ring-change"), 2), 3, "seen"),
            do.replace(at.argument(at.point("ring-change"), 0), "'ring-close'"),
        ),
        rings(
            "change_retention",
            do.add_parameter("seen"),
            do.replace(at.argument("bucketing.closed", 0), "seen"),
        ),
        rings(
            "",
            do.define("""
def read_labels(world):
    return world, tuple(held.start for held in world.rings[world.routes[-1].ring].buckets)
"""),
        ),
    ),
    "a janitor that read before whether the ring is closed": mutant(
        (RAISED_END, LOWERED_END),
        rings(
            "MemoryRings.rotate",
            do.insert_before(at.point("ring-rotate"), "seen = await self._perform('ring-read', read_bucketing, (ring,))"),
            do.add_element(at.argument(at.point("ring-rotate"), 2), 2, "seen"),
            do.replace(at.argument(at.point("ring-rotate"), 0), "'ring-label'"),
        ),
        rings(
            "rotate",
            do.add_parameter("seen"),
            do.replace(_CUT, "seen"),
        ),
        rings(
            "",
            do.define("""
def read_bucketing(world, number):
    return world, world.rings[number].bucketing
"""),
        ),
    ),
    "another ring labelled for later slices": mutant(
        (RAISED_END, LOWERED_END),
        rings("change_retention", do.replace(at.argument("first_labels", 1), "old + bucketing.buckets * bucketing.width")),
    ),
    "a raise that forgets the last slices as before": mutant(
        (RAISED,), rings("change_retention", do.replace(at.argument("bucketing.closed", 3), "0"))
    ),
    "a raise that forgets rings closed before as before": mutant(
        (TWICE,), rings("change_retention", do.replace(at.call("kept_for"), "cut", cut=at.receiver("kept_for")))
    ),
    "a lower retention that forgets a slice early": mutant(
        (LOWERED,),
        rings(
            "rotate",
            do.replace(at.argument("to_hold", 2), "old + cut.width", cut=_CUT),
            do.replace(at.argument("may_forget", 1), "old + cut.width", cut=_CUT),
        ),
    ),
    "a lower retention for all who share a ring": mutant(
        (SHARED,), rings("change_retention", do.never(at.condition("is_shared")))
    ),
    "a slice of an undispatched record forgotten in a closed ring": mutant(
        (SENDING,), rings("rotate", do.drop(at.branch(at.condition("world.records"))))
    ),
    "a ring chosen by the clock": mutant(
        (RAISED_END, BATCH), rings("place_of", do.replace(at.argument("route_at", 1), "world.now"))
    ),
}
