"""Broken versions of the shared counters, and of runs that have a process to themselves."""

from onceonly_verify.mutants.known_bad import Mutant
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations.operations import drop, insert_after, insert_before, replace, replace_statement
from onceonly_verify.mutations.places import argument, condition, named, result_of, returned

CRASHED = "shared counters, two copies that must run alone, and a crash"
KILLED = "shared counters, two copies that must run alone, and a kill by the supervisor"
UNANSWERED = "shared counters, two copies that must run alone, and a failed call"
UNSEEN = "shared counters, a message that comes again, and no death was seen"
HELD = "shared counters, messages that a process held, and a kill by the supervisor"
KILLING = "shared counters, a message that kills its process, and one that it held"
BETWEEN = "shared counters, a message that kills its process, and a crash"
BESIDE = "shared counters, an explained death beside an unclear one"


def row(function: str, *operations: EditOperation) -> CodeChange:
    """Change the shared counters."""
    return change("runtime.processes.counters", f"CounterRow.{function}", *operations)


def alone(function: str, *operations: EditOperation) -> CodeChange:
    """Change the runs that have a process to themselves."""
    return change("runtime.worker.alone", f"AloneStarts.{function}", *operations)


OLD = result_of("_now")

DEATHS: tuple[Mutant, ...] = (
    Mutant(
        "a kill by the supervisor explains nothing",
        (KILLED,),
        (row("record_death", replace(condition("_deaths"), "old or not blames")),),
    ),
    Mutant(
        "a kill by the supervisor counted",
        (KILLED,),
        (change("runtime.processes.counters", "_killed", replace(returned(), "attempts")),),
    ),
    Mutant("the record of a run that was killed left", (KILLED,), (alone("begin", drop("_forget_killed")),)),
    Mutant("a run alone without a mark", (CRASHED,), (alone("begin", drop("_enter")),)),
    Mutant(
        "a run alone marked after its record is written",
        (CRASHED,),
        (alone("begin", drop("_enter"), insert_after("_starts.begin", "self._enter(identity, attempts)")),),
    ),
    Mutant(
        "the mark of a run alone removed before its record",
        (CRASHED,),
        (alone("ended", insert_before("_starts.ended", "self.leave()")),),
    ),
    Mutant(
        "a handler marked twice when it runs alone",
        (KILLING, HELD),
        (alone("_enter", insert_after("_row.enter", "self._row.enter(*self._mark)")),),
    ),
    Mutant(
        "a process kept for a message that waits",
        (UNANSWERED,),
        (alone("begin", replace(condition("wait"), "started.died is not None", started=result_of("_starts.begin"))),),
    ),
    Mutant(
        "every message taken for one that was only held",
        (UNSEEN, BESIDE),
        (alone("died", replace(argument("DeadRuns", "explained"), "True")),),
    ),
    Mutant(
        "an explained death explains an unclear one",
        (BESIDE,),
        (
            row(
                "explains",
                replace(returned(OLD), "explained > old_", explained=result_of(named("SINCE"), 0), old_=OLD),
            ),
        ),
    ),
    Mutant(
        "the record of a death left that an older copy counts",
        (BETWEEN,),
        (
            alone(
                "_take_deaths",
                replace_statement(
                    "forget",
                    "if self._presence.is_alone:\n    await self.forget(identity, attempts)",
                    identity=argument("forget", 0),
                    attempts=argument("forget", 1),
                ),
            ),
        ),
    ),
    Mutant(
        "a death forgotten before its record",
        (BETWEEN,),
        (
            alone(
                "_take_deaths",
                insert_before(
                    "forget",
                    "row.remove_deaths(claim_key(self._endpoint, identity), attempts)",
                    identity=argument("forget", 0),
                    attempts=argument("forget", 1),
                ),
            ),
        ),
    ),
    Mutant(
        "the record of a death that was counted left",
        (KILLING,),
        (alone("forget", drop("_starts.forget")),),
    ),
)
