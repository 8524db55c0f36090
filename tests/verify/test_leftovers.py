"""What is kept beside the stores, shown to the auditor directly, and the cures that the checks led to, taken away again."""

from msgspec.structs import replace

from onceonly.adapters.memory.artifacts import ArtifactsWorld
from onceonly.adapters.memory.store import StoreWorld
from onceonly.model.artifact import Artifact
from onceonly.model.token import Token
from onceonly_verify import CHECKS, MUTANTS, run_check, run_mutant
from onceonly_verify.check import TWICE, Check
from onceonly_verify.invariants.resources import QuiescentWorld, dead_tokens, left_over, missing_things
from onceonly_verify.memory_ports.tokens import TokensWorld
from onceonly_verify.workload import SHOP, SINK, DeduplicationMode, Workload, copies
from onceonly_verify.workload_ports import ARTIFACTS, TOKENS
from onceonly_verify.world import Bounds, BrokerPart

NAMED = {check.name: check for check in CHECKS}
CARRIED = Workload(arrivals=copies("a"), deduplication=DeduplicationMode.TOKENS)
MAKING = Workload(arrivals=copies("a"), deduplication=DeduplicationMode.HISTORY, artifacts=1)
COMMITTED = {SHOP: StoreWorld(notes=(("a", "1.1.2"),))}
EMPTY = BrokerPart(None)


def artifact(attempt: str, mark: str) -> ArtifactsWorld:
    """Return a place with one thing in it."""
    return ArtifactsWorld(frozenset([Artifact(kind="blob", name=f"{attempt}/0", data=f"a.0 by {mark}".encode())]))


def test_a_message_whose_token_is_not_live_would_be_dropped() -> None:
    """In every state: it was made live before the message was sent, and the sink consumes nothing."""
    sent = BrokerPart(None, tokens=frozenset([Token("t", SINK)]))
    assert not [*dead_tokens(CARRIED, {TOKENS: TokensWorld(live=frozenset([Token("t", SINK)]))}, sent.tokens)]
    (words,) = dead_tokens(CARRIED, {TOKENS: TokensWorld()}, sent.tokens)
    assert words == "dead token: a message was sent with token 't', which is not live: its receiver drops it"


def test_a_live_token_whose_message_is_gone_is_a_leak() -> None:
    """But that of a dead letter waits for a retry."""
    carrying = {TOKENS: TokensWorld(live=frozenset([Token("t", SHOP)]))}
    (words,) = left_over(CARRIED, QuiescentWorld(carrying, {}, EMPTY, frozenset()), overtaken=False)
    assert words == "leak: token 't' of shop is live, and its message is gone"
    assert not [*left_over(CARRIED, QuiescentWorld(carrying, {}, EMPTY, frozenset([Token("t", SHOP)])), overtaken=False)]


def test_what_a_committed_attempt_made_is_there() -> None:
    """From its commit on."""
    assert not [*missing_things(MAKING, {ARTIFACTS: artifact("1.1.1", "1.1.2")}, COMMITTED)]
    (words,) = missing_things(MAKING, {ARTIFACTS: ArtifactsWorld()}, COMMITTED)
    assert words == "unmade: 'a.0 by 1.1.2' is gone, and the attempt that made it was committed"


def test_what_no_committed_attempt_made_and_no_row_leads_to_is_a_leak() -> None:
    """But where a sweeper overtook its attempt."""
    left = QuiescentWorld({ARTIFACTS: artifact("2.1.1", "2.1.2")}, COMMITTED, EMPTY, frozenset())
    (words,) = left_over(MAKING, left, overtaken=False)
    assert words == "leak: '2.1.1/0' is there, its attempt was never committed, and no row leads to it"
    assert not [*left_over(MAKING, left, overtaken=True)]


def test_without_a_sweeper_what_a_crash_leaves_rests() -> None:
    """It is found by nobody, and that is no fault of those that are there."""
    result = run_check(replace(NAMED["an artifact, a crash and a failed call"], sweepers=0))
    assert (result.violation, result.stuck) == ("", 0)


def test_a_sweeper_has_a_bound_on_how_often_it_overtakes() -> None:
    """Else an attempt might never end; when nothing else is left to do, it needs none."""
    check = Check(name="x", workload=replace(CARRIED, arrivals=TWICE), bounds=Bounds(sweeps=1), sweepers=1)
    assert check.bound == "2 copies of 1 message, 2 workers, batches of 1, 1 sweeper, tokens, 1 early sweep"


def test_a_mutant_of_documents_tells_which_write_met_which() -> None:
    """A document by its key and by how often it was written."""
    found = run_mutant(next(mutant for mutant in MUTANTS if mutant.name == "documents: no version check"))
    told = [f"{step.who}: {step.what}: {step.outcome}" for step in found.steps]
    assert "worker A: save entity/e for the first time: applied" in told
