"""What a mutant is, and the checks that mutants name."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from onceonly_verify.mutations import CodeChange, change

ONE, COPIES, OPTIMISTIC = "one message", "two copies, blocking store", "two copies, optimistic store"
DUPLICATE, ACROSS = "a duplicate within a batch", "duplicates within and across batches, optimistic store"
UNSTEADY, CRASHING = "two messages in one unit, one is unsteady", "two messages in one unit, and a crash"
ISOLATED, ISOLATED_FAILING = (
    "two messages in an isolated unit, one is unsteady",
    "a message in an isolated unit, beside one that fails",
)
FAILING, KILLING = "a handler that fails: retry, then dead letter", "a message that kills its process"
FAILING_ALONE = "a handler that fails, and nothing else does"
HASTY, BESIDE = (
    "a message that kills its process, no retries",
    "a message that kills its process, beside one that must run alone",
)
UNANSWERED, AHEAD = "a message whose receive is not answered, no retries", "a message brought ahead to a process that dies"
UNSEEN, EARLY = (
    "a message that must run alone, and nobody sees its process die",
    "the lease of a message that must run alone ends early",
)
UNSEEN_KILL, UNSEEN_TWO = (
    "a message that kills its process, and nobody sees it die",
    "two messages, and nobody sees their process die",
)
MISMATCH, REFUSED, HOPELESS = (
    "the same id with another body",
    "an effect that is always refused",
    "given up with its effects pending",
)
NO_COPY, NO_COPY_UNSTEADY = "a handler that fails, and no copy can be made", "an unsteady handler, and no copy can be made"
REFUSED_COMMIT = "a commit that is refused"
RUINOUS, OUTAGE = "a message that ruins every unit it is in", "an outage of the store"
OUTLASTING = "a handler that runs on after its time"
LOCKED, LOCKED_OUT = "a message that waits for a lock", "a lock time-out that ends its unit"

CHAIN, CHAIN_CRASHING = "a chain, two workers each", "a chain, one worker each, two crashes"
CHAIN_WIDE, CHAIN_FAILING = "a chain, two senders with one id, two effects each", "a chain, both handlers fail"

RELAYED, RELAYED_TWO = "a committed transaction whose process died", "two transactions whose processes died"
DEDUP = "two messages of one entity in a batch, a dedup store, two workers and a crash"
BOTH = "given up while it is handled, blocking store"


class Mutant(NamedTuple):
    """A broken version, and the checks that may catch it, in the order in which they are tried."""

    name: str
    checks: tuple[str, ...]
    changes: tuple[CodeChange, ...]
    needs_log: bool = False
    """Whether it changes only how a batch is handled and reported. All others must be seen by what they leave behind."""

    @property
    def words(self) -> str:
        """Return in one line what it does to the shipping code."""
        return "; ".join(each.words for each in self.changes if each.words)


def mutant(checks: tuple[str, ...], *changes: CodeChange, needs_log: bool = False) -> Mutant:
    """Return a mutant that takes its name from the table it is in."""
    return Mutant("", checks, changes, needs_log)


def named(*tables: Mapping[str, Mutant]) -> tuple[Mutant, ...]:
    """Return the mutants of tables by name, in their order."""
    return tuple(mutant._replace(name=name) for table in tables for name, mutant in table.items())


outbox = partial(change, "algorithms.outbox")
delivery = partial(change, "algorithms.delivery")
blame = partial(change, "algorithms.blame")
settlement = partial(change, "algorithms.settlement")
deaths = partial(change, "algorithms.deaths")
intake = partial(change, "algorithms.intake")
relay = partial(change, "algorithms.relay")
identity = partial(change, "model.identity")
run_markers = partial(change, "adapters.memory.run_markers")
transport = partial(change, "adapters.memory.transport")
store = partial(change, "adapters.memory.store")
