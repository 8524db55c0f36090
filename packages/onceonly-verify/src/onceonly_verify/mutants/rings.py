"""Broken versions of claims that are forgotten: labels, recycling, and what becomes of barred messages."""

from onceonly_verify.mutants.known_bad import Mutant, delivery
from onceonly_verify.programs import Patch

QUIET = "a ring, copies that come late, and nothing to send"
LATE, NEXT = "a ring, and copies that come late", "a ring, and a slot's next slice"
SLOT, LATE_OPTIMISTIC = "a ring, two slices of one slot", "a ring, and copies that come late, optimistic store"
HEADERS, FOREIGN = "a ring, and one message with two headers", "a ring, and one message of another sender with two headers"
BEFORE = "a ring, and what an older version has handled"

_BARRED = "    return tuple(Barred(message, bar) for message, bar in judged if bar is not None)\n"
_RECYCLED_MEANWHILE = "    if any(world.slots[dial.slicing.slot(start)].start != start for start in slices.values()):\n"
_OWED = (
    "    if held.start is not None and any(waiting.slice == held.start for waiting in world.records):\n"
    "        return world, Recycling.OWED\n"
)
_DONE = "    return replace(world, slots=slots), Recycling.RECYCLED\n"
_CALL = '        found: Recycling = await self._driver.perform(Operation("recycle", self._store.place, recycle, arguments))\n'
_BEFORE_REMOVE = "def remove_expired(world: RingWorld, limit: int, dial: Dial) -> Step:\n"
_BEGIN = '        found = await self._perform("begin", begin, (tuple(messages), token, self.dial()))\n'
_WANTED = "world.slots[number], dial.slicing.wanted(number, dial.now)\n"
_EARLY = "not slicing.may_forget(held.start, dial.now)"


def ring(old: str, new: str) -> Patch:
    """Change the memory store that forgets."""
    return Patch("adapters.memory.ring", old, new)


def in_two_steps(first: str, second: str) -> tuple[Patch, ...]:
    """Recycle in two calls: `first` and `second` give a slot from what it held and what it should hold.

    The first one locks and looks as ever; the second waits for nobody but units at work, and looks at nothing.
    """
    return (
        ring(
            _CALL,
            _CALL.replace("recycle, arguments", "first_step, arguments")
            + "        if found is Recycling.RECYCLED:\n    "
            + _CALL.replace('"recycle"', '"recycle-on"').replace("recycle, arguments", "second_step, arguments"),
        ),
        ring(
            _BEFORE_REMOVE,
            "def first_step(world, number, dial):\n"
            "    outcome = recycle(world, number, dial)[1]\n"
            "    held, wanted = world.slots[number], dial.slicing.wanted(number, dial.now)\n"
            f"    after = {first} if outcome is Recycling.RECYCLED else held\n"
            "    return replace(world, slots=(*world.slots[:number], after, *world.slots[number + 1 :])), outcome\n\n\n"
            "def second_step(world, number, dial):\n"
            "    used = {dial.slicing.slot(start) for unit in world.open for _, start in unit.slices}\n"
            "    if dial.blocking and number in used:\n"
            "        return None\n"
            "    held, wanted = world.slots[number], dial.slicing.wanted(number, dial.now)\n"
            f"    after = {second}\n"
            "    slots = (*world.slots[:number], after, *world.slots[number + 1 :])\n"
            "    return replace(world, slots=slots), Recycling.RECYCLED\n\n\n" + _BEFORE_REMOVE,
        ),
    )


RINGS: tuple[Mutant, ...] = (
    Mutant(
        "retention shorter than redelivery",
        (LATE,),
        (ring(_WANTED, _WANTED.replace("now)", "now + dial.slicing.retention)")), ring(_EARLY, "False")),
    ),
    Mutant(
        "undispatched record evicted",
        (SLOT,),
        (
            ring(_OWED, ""),
            ring(
                _DONE,
                _DONE.replace("slots=slots", "slots=slots, records=tuple(w for w in world.records if w.slice != held.start)"),
            ),
        ),
    ),
    Mutant("slice of an undispatched record forgotten", (LATE,), (ring(_OWED, ""),)),
    Mutant("label not checked", (QUIET,), (ring(_BARRED, "    return ()\n"), ring(_RECYCLED_MEANWHILE, "    if False:\n"))),
    Mutant(
        "label read by an earlier SELECT",
        (QUIET,),
        (
            ring(
                _BEGIN,
                '        seen = await self._perform("labels", labels, (tuple(messages), self.dial()))\n'
                + _BEGIN.replace("token, self", "token, seen, self"),
            ),
            ring("token: Hashable, dial: Dial) -> Step | None:\n", "token, seen, dial: Dial) -> Step | None:\n"),
            ring("    refused = _barred(world, messages, slices, dial)\n", "    refused = seen\n"),
            ring(_RECYCLED_MEANWHILE, "    if False:\n"),
            ring(
                _BEFORE_REMOVE,
                "def labels(world, messages, dial):\n"
                "    slices = {m.identity: start for m in messages if (start := dial.slice_of(m)) is not None}\n"
                "    return world, _barred(world, messages, slices, dial)\n\n\n" + _BEFORE_REMOVE,
            ),
        ),
    ),
    Mutant(
        "label committed by a unit",
        (QUIET,),
        (
            ring(
                "    return replace(world, open=(*world.open, unit)), found\n",
                "    offered = {dial.slicing.slot(m.instant): dial.slice_of(m) for m in messages if m.identity in shut}\n"
                "    slots = tuple(\n"
                "        replace(held, start=offered.get(number, held.start)) for number, held in enumerate(world.slots)\n"
                "    )\n"
                "    return replace(world, slots=slots, open=(*world.open, unit)), found\n",
            ),
        ),
    ),
    Mutant("truncate then relabel", (QUIET,), in_two_steps("Held(held.start)", "Held(wanted, held.claims)")),
    Mutant("relabel then truncate", (NEXT,), in_two_steps("Held(wanted, held.claims)", "Held(held.start)")),
    Mutant("two janitors without a lock", (NEXT,), in_two_steps("held", "Held(wanted)")),
    Mutant(
        "a unit committed into a slot that was recycled", (LATE_OPTIMISTIC,), (ring(_RECYCLED_MEANWHILE, "    if False:\n"),)
    ),
    Mutant(
        "waiting for a slot counted as a failure",
        (NEXT,),
        (delivery("Failure(kind=FailureKind.LATER, reason=Bar", "Failure(kind=FailureKind.EXCEPTION, reason=Bar"),),
    ),
    Mutant(
        "what waits for its slot refused",
        (NEXT,),
        (
            delivery("    waiting = [item for item, bar in barred if bar is Bar.UNRECYCLED]\n", "    waiting = []\n"),
            delivery("for item, bar in barred if bar is not Bar.UNRECYCLED]\n", "for item, bar in barred]\n"),
        ),
    ),
    Mutant(
        "instant taken from the header again",
        (HEADERS,),
        (
            ring("        instant = message.instant\n", "        instant = read_instant(message.extension(INSTANT))\n"),
            ring("import Slicing\n", "import INSTANT, Slicing, read_instant\n"),
        ),
    ),
    Mutant(
        "what another sender's header says taken for its instant",
        (FOREIGN,),
        (ring("        instant = message.instant\n", "        instant = message.instant or message.former_instant\n"),),
    ),
    Mutant(
        "the claim of an older version not looked for",
        (BEFORE,),
        (ring("        instant = message.former_instant\n", "        instant = 0\n"),),
    ),
    Mutant(
        "claimed where an older version does, and nowhere else",
        (FOREIGN,),
        (
            ring("if claim[0] not in slices or claim[0] in unit.both)\n", "if claim[0] not in slices)\n"),
            ring("if claim[0] not in slices or claim[0] in both}\n", "if claim[0] not in slices}\n"),
        ),
    ),
    Mutant(
        "a refused message acknowledged, and not kept",
        (SLOT,),
        (
            delivery(
                "for item, failure in finals], ports)\n",
                "for item, failure in ()], ports)\n"
                "    await _ack([delivery for item, _ in finals for delivery in item.deliveries], ports)\n",
            ),
        ),
    ),
)
