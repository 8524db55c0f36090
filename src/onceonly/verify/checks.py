"""The checks: small worlds, each explored completely."""

from msgspec import Struct
from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly.verify.beside import relay_roles, transaction_roles
from onceonly.verify.roles import Role, endpoint_roles
from onceonly.verify.workload import BILLING, NOWHERE, SHOP, Arrival, Behaviour, Workload, copies
from onceonly.verify.world import Bounds, count


class Check(Struct, frozen=True, kw_only=True):
    """One small world to explore: what arrives, how much may go wrong, and how many deliveries of one copy are too many."""

    name: str
    workload: Workload
    bounds: Bounds
    workers: int = 2
    relays: int = 0
    batch: int = 1
    patience: int = 12
    reaches: tuple[str, ...] = ("begin", "commit", "send", "forget", "ack")
    """Calls that must occur, so that a check that does nothing fails."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Say what its workers do."""
        workers = endpoint_roles(self.workload, workers=self.workers, batch=self.batch) if self.workers else ()
        return (*workers, *transaction_roles(self.workload), *relay_roles(self.workload, relays=self.relays))

    @property
    def bound(self) -> str:
        """Say in words how large the world is."""
        arrivals = self.workload.arrivals
        messages = len({arrival.name for arrival in arrivals})
        copied = [f"{count(len(arrivals), 'copy', 'copies')} of {count(messages, 'message', 'messages')}"] if arrivals else []
        transactions = len(self.workload.transactions)
        started = [count(transactions, "transaction", "transactions")] if transactions else []
        endpoints = len(self.workload.endpoints)
        where = " at each endpoint" if endpoints > 1 else ""
        each = f"{count(self.workers, 'worker', 'workers')}{where}"
        chained = [f"{count(endpoints, 'endpoint', 'endpoints')} in a chain"] if endpoints > 1 else []
        busy = [each, f"batches of {self.batch}"] if self.workers else []
        relays = [f"{count(self.relays, 'relay', 'relays')}{where}"] if self.relays else []
        return ", ".join([*chained, *copied, *started, *busy, *relays, self.bounds.text()])


TWICE = copies("a", "a")
CHAIN = (SHOP, BILLING)
ONE_OF_EACH = Bounds(crashes=1, expiries=1, failures=1)
IMPATIENT, HASTY = Retry(immediate=1, delayed=0), Retry(immediate=0, delayed=0)
GIVING_UP = ("begin", "commit", "send", "forget", "dead-letter", "ack")
GIVEN_UP = Workload(arrivals=copies("a"), retry=HASTY, may_be_given_up=True, may_be_both=True)

CHECKS: tuple[Check, ...] = (
    Check(
        name="two copies, blocking store",
        workload=Workload(arrivals=TWICE),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="two copies, optimistic store",
        workload=Workload(arrivals=TWICE, blocking=False),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="one message",
        workload=Workload(arrivals=copies("a")),
        bounds=ONE_OF_EACH,
    ),
    Check(
        name="a duplicate within a batch",
        workload=Workload(arrivals=TWICE),
        bounds=Bounds(crashes=1, failures=1),
        batch=2,
    ),
    Check(
        name="two messages in one unit, one is unsteady",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(failures=1, whims=2),
        workers=1,
        batch=2,
    ),
    Check(
        name="two messages in one unit, and a crash",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.UNSTEADY),)),
        bounds=Bounds(crashes=1, whims=1),
        batch=2,
    ),
    Check(
        name="overlapping batches",
        workload=Workload(arrivals=copies("a", "b", "a"), blocking=False),
        bounds=Bounds(failures=1),
        batch=2,
    ),
    Check(
        name="a handler that fails: retry, then dead letter",
        workload=Workload(arrivals=copies("a"), behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(crashes=1, failures=1),
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack", "release"),
    ),
    Check(
        name="a handler that fails, and nothing else does",
        workload=Workload(arrivals=TWICE, behaviours=(("a", Behaviour.FAILS),), retry=IMPATIENT),
        bounds=Bounds(),
        patience=6,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="a commit that is refused",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("b", Behaviour.REFUSED),), retry=IMPATIENT),
        bounds=Bounds(failures=1),
        workers=1,
        batch=2,
    ),
    Check(
        name="a message that kills its process",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=Retry(immediate=3, delayed=0)),
        bounds=Bounds(),
        batch=2,
        patience=20,
    ),
    Check(
        name="a message that kills its process, no retries",
        workload=Workload(arrivals=copies("a", "b"), behaviours=(("a", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="a message that kills its process, beside one that must run alone",
        workload=Workload(arrivals=copies("a", "c", "c"), behaviours=(("c", Behaviour.KILLS),), retry=HASTY),
        bounds=Bounds(),
        workers=1,
        batch=2,
        patience=20,
    ),
    Check(
        name="the same id with another body",
        workload=Workload(arrivals=(Arrival("a", "a"), Arrival("a", "b"))),
        bounds=Bounds(crashes=1),
        batch=2,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack", "release"),
    ),
    Check(
        name="an effect that is always refused",
        workload=Workload(arrivals=copies("a"), to=NOWHERE, retry=Retry(immediate=2, delayed=0)),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
        reaches=("begin", "commit", "send", "dead-letter", "ack"),
    ),
    Check(
        name="given up with its effects owed",
        workload=GIVEN_UP,
        bounds=Bounds(crashes=2, failures=1),
        workers=1,
        reaches=("begin", "commit", "send", "forget", "dead-letter", "ack"),
    ),
    Check(
        name="given up while it is handled, blocking store",
        workload=GIVEN_UP,
        bounds=Bounds(crashes=2, expiries=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="given up while it is handled, optimistic store",
        workload=replace(GIVEN_UP, blocking=False),
        bounds=Bounds(crashes=2, expiries=1),
        relays=1,
        reaches=GIVING_UP,
    ),
    Check(
        name="a relay beside a worker",
        workload=Workload(arrivals=copies("a")),
        bounds=ONE_OF_EACH,
        workers=1,
        relays=1,
    ),
    Check(
        name="a committed transaction whose process died",
        workload=Workload(arrivals=(), transactions=("t",), told=("t",), effects=2),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=2,
    ),
    Check(
        name="two transactions whose processes died",
        workload=Workload(arrivals=(), transactions=("t", "u")),
        bounds=Bounds(crashes=1, failures=1),
        workers=0,
        relays=2,
    ),
    Check(
        name="two effects of one message",
        workload=Workload(arrivals=TWICE, effects=2),
        bounds=Bounds(crashes=1, failures=1),
    ),
    Check(
        name="duplicates within and across batches, and a crash",
        workload=Workload(arrivals=copies("a", "a", "a", "b")),
        bounds=Bounds(crashes=1),
        batch=2,
    ),
    Check(
        name="duplicates within and across batches, optimistic store",
        workload=Workload(arrivals=copies("a", "a", "a"), blocking=False),
        bounds=Bounds(crashes=1),
        batch=2,
    ),
    Check(
        name="a chain, one worker each, two crashes",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=2, expiries=1),
        workers=1,
    ),
    Check(
        name="a chain, two workers each",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(expiries=1),
    ),
    Check(
        name="a chain, two workers each, and a crash",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1, expiries=1),
    ),
    Check(
        name="a chain, one worker each, a crash and a failed call",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1, failures=1),
        workers=1,
    ),
    Check(
        name="a chain, one worker each, every kind of fault",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=ONE_OF_EACH,
        workers=1,
    ),
    Check(
        name="a chain, one worker and one relay each",
        workload=Workload(arrivals=copies("a"), endpoints=CHAIN),
        bounds=Bounds(crashes=1),
        workers=1,
        relays=1,
    ),
    Check(
        name="a chain, both handlers fail",
        workload=Workload(
            arrivals=copies("a"),
            endpoints=CHAIN,
            behaviours=(("a", Behaviour.UNSTEADY), ("a.0", Behaviour.FAILS)),
            retry=IMPATIENT,
            may_be_both=True,
        ),
        bounds=Bounds(crashes=1, whims=2),
        workers=1,
        patience=8,
        reaches=("begin", "send", "dead-letter", "ack"),
    ),
    Check(
        name="a chain, two senders with one id, two effects each",
        workload=Workload(arrivals=(*TWICE, Arrival("a", "b", source="elsewhere")), endpoints=CHAIN, effects=2),
        bounds=Bounds(),
        workers=1,
        batch=2,
    ),
)
