"""What a check is: a small world, how much may go wrong in it, and who is at work."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from onceonly.model.retry import Retry
from onceonly_verify.actors.clients import client_roles
from onceonly_verify.actors.executors import executing_roles, fencing_roles
from onceonly_verify.actors.hosts import host_roles, hosted_roles
from onceonly_verify.actors.maintenance import maintenance_roles
from onceonly_verify.actors.owners import owner_roles
from onceonly_verify.actors.relays import relay_roles, shared_sweeper_roles, sweeper_roles, transaction_roles
from onceonly_verify.actors.timekeeping import expiry_roles, timed
from onceonly_verify.roles import Role, endpoint_roles, peerless_roles, stale_roles
from onceonly_verify.workload import BILLING, SHOP, DeduplicationMode, Workload, copies
from onceonly_verify.world import Bounds, count

HANDLED = ("begin", "commit", "send", "forget", "ack")
"""What workers call, if every message is handled."""
GIVING_UP = ("begin", "commit", "send", "forget", "dead-letter", "ack")
"""What workers call, if some messages are handled and others are given up."""


class Check(Struct, frozen=True):
    """One small world to explore: what arrives, how much may go wrong, and how many deliveries of one copy are too many."""

    workload: Workload
    bounds: Bounds = Bounds()
    workers: int = 2
    relays: int = 0
    executors: int = 2
    """How many answer other services, where any ask."""
    sweepers: int = 0
    """How many sweep at each endpoint that leaves something to sweep."""
    shared_sweepers: int = 0
    """How many sweep for all endpoints, one after another, in one process."""
    janitors: int = 0
    peerless: int = 0
    """How many workers lack the setting for other services."""
    stale: int = 0
    """How many workers do not know of changes of the retention when they receive: their processes were started before."""
    batch: int = 1
    isolated: bool = False
    """Whether units undo each failed handler alone from the start."""
    full: bool = False
    """Whether each batch is as large as it can be. Then many situations in large batches take few states."""
    patience: int = 12
    reaches: tuple[str, ...] = HANDLED
    """Calls that must occur, so that a check that does nothing fails."""
    name: str = ""
    """What the tables of `checks` call it."""

    @property
    def roles(self) -> tuple[Role, ...]:
        each = endpoint_roles(self.workload, workers=self.workers, batch=self.batch, isolated=self.isolated, full=self.full)
        if self.workload.hosted:
            each = hosted_roles(self.workload, workers=self.workers, batch=self.batch)
        workers = each if self.workers else ()
        roles = (
            *workers,
            *peerless_roles(self.workload, workers=self.peerless, batch=self.batch),
            *stale_roles(self.workload, workers=self.stale, batch=self.batch),
            *transaction_roles(self.workload),
            *host_roles(self.workload),
            *client_roles(self.workload),
            *(owner_roles(self.workload) if self.workload.clients_own else ()),
            *fencing_roles(self.workload),
            *executing_roles(self.workload, workers=self.executors),
            *relay_roles(self.workload, relays=self.relays),
            *sweeper_roles(self.workload, sweepers=self.sweepers),
            *shared_sweeper_roles(self.workload, sweepers=self.shared_sweepers),
            *maintenance_roles(self.workload, janitors=self.janitors),
            *expiry_roles(self.workload),
        )
        return tuple(timed(role, self.workload.timing) for role in roles)

    @property
    def bound(self) -> str:
        """Return in words how large the world is."""
        arrivals = self.workload.arrivals
        messages = len({arrival.name for arrival in arrivals})
        copied = [f"{count(len(arrivals), 'copy', 'copies')} of {count(messages, 'message', 'messages')}"] if arrivals else []
        transactions = len(self.workload.transactions)
        started = [count(transactions, "transaction", "transactions")] if transactions else []
        clients = len(self.workload.clients)
        started += [count(clients, "client's attempt", "clients' attempts")] if clients else []
        asked = len(self.workload.asked)
        started += ["in transactions of their own"] if self.workload.clients_own else []
        started += [f"{count(asked, 'request', 'requests')} of another service"] if asked else []
        fences = self.workload.fences
        started += [f"{count(fences, 'fence', 'fences')} for other messages"] if fences else []
        endpoints = len(self.workload.endpoints)
        where = " at each endpoint" if endpoints > 1 else ""
        each = f"{count(self.workers, 'worker', 'workers')}{where}"
        chained = [f"{count(endpoints, 'endpoint', 'endpoints')} in a chain"] if endpoints > 1 else []
        size = f"{'full ' if self.full else ''}{'isolated ' if self.isolated else ''}batches of {self.batch}"
        taken = ["handlers that take batches"] if self.workload.batched else []
        host = ["a host that receives"] if self.workload.hosted else []
        host += (
            [f"gives up after {count(self.workload.hosted_most, 'delivery', 'deliveries')}"]
            if self.workload.hosted_most
            else []
        )
        busy = [each, size, *taken, *host] if self.workers else []
        relays = [f"{count(self.relays, 'relay', 'relays')}{where}"] if self.relays else []
        peerless = [f"{count(self.peerless, 'worker', 'workers')} without peers"] if self.peerless else []
        stale = [f"{count(self.stale, 'worker', 'workers')} from before a change"] if self.stale else []
        sweepers = [count(self.sweepers, "sweeper", "sweepers")] if self.sweepers else []
        sweepers += [f"{count(self.shared_sweepers, 'sweeper', 'sweepers')} of all endpoints"] if self.shared_sweepers else []
        janitors = [count(self.janitors, "janitor", "janitors")] if self.janitors else []
        kept = [self.workload.deduplication.value] if self.workload.deduplication is not DeduplicationMode.CLAIMS else []
        timing = self.workload.timing
        time = [count(timing.steps, "step of the clock", "steps of the clock")] if timing else []
        changes = self.workload.changes
        if changes:
            time = [f"a retention of {changes.before} slices, then of {' and of '.join(map(str, changes.after))}"]
            time.append(count(changes.steps, "step of the clock", "steps of the clock"))
        if timing and {*timing.skews, *timing.sweeper_skews} != {0}:
            time.append("clocks that differ by a step")
        return ", ".join(
            [
                *chained,
                *copied,
                *started,
                *busy,
                *stale,
                *peerless,
                *relays,
                *sweepers,
                *janitors,
                *kept,
                *time,
                self.bounds.text(),
            ]
        )


def named(*tables: Mapping[str, Check]) -> tuple[Check, ...]:
    """Return the checks of tables by name, in their order."""
    return tuple(replace(check, name=name) for table in tables for name, check in table.items())


TWICE = copies("a", "a")
CHAIN = (SHOP, BILLING)
ONE_OF_EACH = Bounds(crashes=1, expiries=1, failures=1)
IMPATIENT, HASTY = Retry(immediate=1, delayed=0), Retry(immediate=0, delayed=0)
GIVEN_UP = Workload(arrivals=copies("a"), retry=HASTY, may_be_given_up=True, may_be_both=True, supervised=False)
