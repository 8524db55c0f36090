"""Broken versions that show when a frozen host thaws: its transaction, its run marker and its claim may belong to the past."""

from onceonly_verify.mutants.hosted import hosted_transport
from onceonly_verify.mutants.known_bad import deaths, mutant, store
from onceonly_verify.mutants.relay import RELAY
from onceonly_verify.mutants.rings import ring
from onceonly_verify.mutants.shell import SHELL
from onceonly_verify.mutants.stored_elsewhere import ENTITIES
from onceonly_verify.mutants.tokens import TOKENS, database
from onceonly_verify.mutants.transactions import TRANSACTIONS, memory
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

THAWS = "a frozen host that thaws, "
OVER, OPTIMISTIC = f"{THAWS}and its transaction may be over", f"{THAWS}and its transaction may be over, optimistic store"
RELAYED, BATCH = f"{THAWS}and a relay meanwhile", f"{THAWS}two messages in a batch"
DEAD, GIVEN_UP = f"{THAWS}and was taken for dead", f"{THAWS}and its message was given up"
DATABASE, ELSEWHERE = f"{THAWS}tokens in the same database", f"{THAWS}tokens elsewhere, and a sweeper meanwhile"
TOKENED, DEDUP = f"{THAWS}tokens, and a sweeper meanwhile", f"{THAWS}a dedup store"
HISTORY = f"{THAWS}an entity and its history, and a relay meanwhile"
IN_TABLES = f"{THAWS}and a control message in tables meanwhile"
ON_DOCUMENTS = f"{THAWS}and a control message on documents meanwhile"
RING_LATER = "time, a frozen host that thaws after the retention, a ring"
HISTORY_LATER = "time, a frozen host that thaws after the retention, an entity and its history"

_UNIT = at.result_of("next")

FROZEN = {
    "a unit that the database ended committed without its claims": mutant(
        (OVER, OPTIMISTIC), store("commit", do.insert_after("next", "unit = unit or OpenUnit(token, ())", unit=_UNIT))
    ),
    "the rows of a unit that the database ended committed on their own": mutant(
        (OPTIMISTIC,),
        store(
            "commit",
            do.insert_after(
                "next", "if unit is None:\n    world = replace(world, notes=world.notes + changes.notes)", unit=_UNIT
            ),
        ),
    ),
    "the rest of a batch committed on its own behind the end of its unit": mutant(
        (BATCH,),
        store(
            "commit",
            do.insert_after(
                "next", "if unit is None:\n    world = replace(world, notes=world.notes + changes.notes[1:])", unit=_UNIT
            ),
        ),
    ),
    "tokens that were swept sent by a unit that the database ended": mutant(
        (ELSEWHERE,),
        store(
            "commit",
            do.insert_after(
                "next",
                "unit = unit or OpenUnit(token, tuple((each.identity, each.fingerprint) for each in changes.records))",
                unit=_UNIT,
            ),
        ),
    ),
    "same database: the rows of a unit that the database ended committed on their own": mutant(
        (DATABASE,),
        database(
            "commit",
            do.insert_after(
                "next",
                "if unit is None:\n"
                "    rows = tuple((stamp[0], *note) for note in changes.notes)\n"
                "    world = replace(world, notes=world.notes + rows)",
                unit=_UNIT,
            ),
        ),
    ),
    "the rows of a transaction that the database ended committed on their own": mutant(
        (IN_TABLES,),
        memory(
            "commit",
            do.insert_first(
                "if not any(unit.token == token for unit in world.open):\n"
                "    world = replace(world, notes=world.notes + final.changes.notes)"
            ),
        ),
    ),
    "a ring: a unit that the database ended committed without its claims": mutant(
        (RING_LATER,), ring("commit", do.insert_after("next", "unit = unit or OpenRingUnit(token, (), ())", unit=_UNIT))
    ),
    "the next look of a hosted control message taken for its redelivery": mutant(
        (IN_TABLES, ON_DOCUMENTS),
        hosted_transport(
            "HostedCall.take_copy",
            do.insert_first("if send.message.type == 'onceonly.control':\n    return True"),
        ),
    ),
    "a message whose process was taken for dead acknowledged": mutant(
        (GIVEN_UP,),
        deaths("", do.imports("onceonly.algorithms.settlement", "ack")),
        deaths(
            "run_alone",
            do.replace(at.answer(at.call("_count_death")), "(await ack(item.deliveries, ports)) or BatchReport(known=1)"),
        ),
    ),
    "the run of a frozen host that ended left recorded": SHELL["a run that ended left recorded"]._replace(checks=(DEAD,)),
    "relay: the claim of a frozen host deleted with the record": RELAY["relay: claim deleted with the record"]._replace(
        checks=(RELAYED,)
    ),
    "unfenced sweeper beside a frozen host": TOKENS["unfenced sweeper"]._replace(checks=(TOKENED,)),
    "record removed before ADD beside a frozen host": ENTITIES["record removed before ADD"]._replace(checks=(DEDUP,)),
    "a frozen host's document saved without a version check": ENTITIES["documents: no version check"]._replace(
        checks=(HISTORY,)
    ),
    "a frozen host's document saved without a version check after its retention": ENTITIES[
        "documents: no version check"
    ]._replace(checks=(HISTORY_LATER,)),
    "no tombstone for a frozen host's attempt": TRANSACTIONS["no tombstone"]._replace(checks=(ON_DOCUMENTS,)),
}
