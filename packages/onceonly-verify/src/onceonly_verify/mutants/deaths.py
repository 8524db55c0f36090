"""Broken versions of the shared counters, of runs that have a process to themselves, and of how messages are given up."""

from onceonly_verify.mutants.artifacts import effects
from onceonly_verify.mutants.known_bad import mutant
from onceonly_verify.mutants.requests import remote_call
from onceonly_verify.mutations import CodeChange, EditOperation, change
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations import places as at

CRASHED = "shared counters, two copies that must run alone, and a crash"
KILLED = "shared counters, two copies that must run alone, and a kill by the supervisor"
UNANSWERED = "shared counters, two copies that must run alone, and a failed call"
UNSEEN = "shared counters, a message that comes again, and no death was seen"
HELD = "shared counters, messages that a process held, and a kill by the supervisor"
KILLING = "shared counters, a message that kills its process, and one that it held"
BETWEEN = "shared counters, a message that kills its process, and a crash"
BESIDE = "shared counters, an explained death beside an unclear one"


def row(function: str, *operations: EditOperation) -> CodeChange:
    return change("runtime.processes.counters", f"CounterRow.{function}", *operations)


def alone(function: str, *operations: EditOperation) -> CodeChange:
    """Change the runs that have a process to themselves."""
    return change("runtime.worker.isolated_runs", f"IsolatedRuns.{function}", *operations)


OLD = at.result_of("_now")

DEATHS = {
    "a kill by the supervisor explains nothing": mutant(
        (KILLED,), row("record_death", do.replace(at.condition("_deaths"), "old or not blames"))
    ),
    "a kill by the supervisor counted": mutant(
        (KILLED,), change("runtime.processes.counters", "_killed", do.replace(at.returned(), "attempts"))
    ),
    "the record of a run that was killed left": mutant((KILLED,), alone("begin", do.drop("_forget_killed"))),
    "a run alone without a mark": mutant((CRASHED,), alone("begin", do.drop("_enter"))),
    "a run alone marked after its record is written": mutant(
        (CRASHED,), alone("begin", do.drop("_enter"), do.insert_after("_run_markers.begin", "self._enter(identity, attempts)"))
    ),
    "the mark of a run alone removed before its record": mutant(
        (CRASHED,), alone("finish", do.insert_before("_run_markers.finish", "self.leave()"))
    ),
    "a handler marked twice when it runs alone": mutant(
        (KILLING, HELD), alone("_enter", do.insert_after("_row.enter", "self._row.enter(*self._mark)"))
    ),
    "a process kept for a message that waits": mutant(
        (UNANSWERED,),
        alone(
            "begin", do.replace(at.condition("wait"), "started.died is not None", started=at.result_of("_run_markers.begin"))
        ),
    ),
    "every message taken for one that was only held": mutant(
        (UNSEEN, BESIDE), alone("find_dead", do.replace(at.argument("DeadRuns", "explained"), "True"))
    ),
    "an explained death explains an unclear one": mutant(
        (BESIDE,),
        row(
            "explains", do.replace(at.returned(OLD), "explained > old_", explained=at.result_of(at.named("SINCE"), 0), old_=OLD)
        ),
    ),
    "the record of a death left that an older copy counts": mutant(
        (BETWEEN,),
        alone(
            "_take_deaths",
            do.replace_statement(
                "forget",
                "if self._membership.is_alone:\n    await self.forget(identity, attempts)",
                identity=at.argument("forget", 0),
                attempts=at.argument("forget", 1),
            ),
        ),
    ),
    "a death forgotten before its record": mutant(
        (BETWEEN,),
        alone(
            "_take_deaths",
            do.insert_before(
                "forget",
                "row.remove_deaths(claim_key(self._endpoint, identity), attempts)",
                identity=at.argument("forget", 0),
                attempts=at.argument("forget", 1),
            ),
        ),
    ),
    "the record of a death that was counted left": mutant((KILLING,), alone("forget", do.drop("_run_markers.forget"))),
}


HOPELESS = {
    "a follow-up message without peers is handled": mutant(
        ("a message that follows up a request, and an endpoint without peers",),
        effects("NoArtifacts.responses", do.replace_body("return {}")),
    ),
    "a lost response is waited for": mutant(
        ("a message whose response is lost",),
        remote_call("_response_of", do.replace(at.call("HandlerFailed"), "PeerAway('', '')")),
    ),
    "a refused fence counts as a failed one": mutant(
        ("a message about an entity that no document can have",),
        change("algorithms.settlement", "_is_committed", do.insert_first("raise", inside=at.handler("CommitRefused"))),
    ),
    "an artifact under the name of another attempt": mutant(
        ("a handler that names an artifact of another attempt",),
        effects("RegisteredEffects.create", do.never(at.condition("startswith"))),
    ),
}
