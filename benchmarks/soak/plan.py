"""What a soak runs, and the limits that follow from it."""

import os
from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from benchmarks.soak.limits import Limit

__all__ = ["PRESENCE", "HostName", "SoakPlan", "limits_of", "plan_of", "plan_of_environment"]

HostName: TypeAlias = Literal["forked", "threaded", "celery"]
VARIABLE = "ONCEONLY_SOAK_PLAN"
"""Where a host finds its plan, as JSON."""

PRESENCE = "rows of processes beyond those that live or were killed lately"
AFTER_SECONDS = 600.0
"""The endpoint's `maintenance.after`. Rows of ended processes are looked for twice in this time."""
RELAY_AFTER_SECONDS = 10.0
MAINTENANCE_CONNECTIONS = 4
"""Connections of the library next to those of units: leader of the janitor and its tasks, the process report, notifications."""
LOOP_DESCRIPTORS = 10
"""3 standard streams, a pipe to the parent, 3 of an event loop, and files that are open for a moment."""
LEAST_GROWTH_MINUTES, LEAST_EXPIRY_MINUTES = 10.0, 2.0
"""Minutes of the shortest run whose growth is judged, and of the shortest one in which something expires."""
SLACK_SECONDS = 60.0
"""Time for a janitor's step: its interval, half of it at random, and a busy machine."""


class SoakPlan(Struct, frozen=True, kw_only=True):
    """One run. Times are in seconds unless they say minutes. Rates are of both kinds of work together."""

    host: HostName = "forked"
    minutes: float = 60.0
    name: str = "soak"
    store: str = ""
    broker: str = ""
    seed: int = 1
    children: int = 4
    threads: int = 8
    units: int = 4
    """`max_concurrency` of the endpoint: units of one process that are open at the same time."""
    pool: int = 2
    """Connections of the application's own engine in each process."""
    prefetch: int = 4
    """Messages that a child holds, for each of its two queues."""
    orders_rate: float = 12.0
    requests_rate: float = 8.0
    retention: float = 300.0
    row_kept: float = 300.0
    """Seconds after which the row of a process that was killed is deleted. The library's own value is an hour."""
    recycle_after: int = 400
    """Messages after which a child, or a thread, ends and another one begins."""
    kill_every: float = 25.0

    @property
    def sync_store(self) -> str:
        """The URL of the store for synchronous sessions."""
        return self.store.replace("+asyncpg", "+psycopg")

    @property
    def orders(self) -> str:
        return f"{self.name}-orders"

    @property
    def requests(self) -> str:
        return f"{self.name}-requests"

    @property
    def placed(self) -> str:
        return f"{self.name}-placed"

    def environment(self) -> dict[str, str]:
        """Return the environment of a host with this plan."""
        return {**os.environ, VARIABLE: msgspec.json.encode(self).decode()}


def plan_of_environment() -> SoakPlan:
    """Return the plan of this host's process."""
    return msgspec.json.decode(os.environ.get(VARIABLE, "{}"), type=SoakPlan)


def plan_of(host: HostName, minutes: float) -> SoakPlan:
    """Return the plan of a run. One of some minutes keeps things for a shorter time, so that they expire within it."""
    retention = max(60.0, min(300.0, minutes * 60 / 6)) if minutes >= LEAST_EXPIRY_MINUTES else 300.0
    return SoakPlan(host=host, minutes=minutes, retention=retention, row_kept=retention)


def limits_of(plan: SoakPlan) -> list[Limit]:
    """Return the limits of a run: what the host may hold with this plan. A short run has no limits of growth."""
    own = {"forked": _of_forked, "threaded": _of_threaded, "celery": _of_celery}[plan.host]
    limits = [*own(plan), *_of_rows(plan)]
    return limits if plan.minutes >= LEAST_GROWTH_MINUTES else [replace(each, growth=None) for each in limits]


def _of_forked(plan: SoakPlan) -> Iterator[Limit]:
    processes = plan.children + 1  # one that was killed is replaced before the server has noticed its end
    own = 2 * plan.prefetch + MAINTENANCE_CONNECTIONS
    yield Limit(
        name="connections of onceonly",
        most=processes * own,
        why=f"(children + 1) x (messages in work of both queues, each handled or dispatched, + {MAINTENANCE_CONNECTIONS})",
    )
    yield Limit(name="connections of the application", most=processes * plan.pool, why="(children + 1) x pool")
    yield Limit(name="connections of RabbitMQ", most=processes * 2, growth=0, why="(children + 1) x 2: the host's, onceonly's")
    yield Limit(name="channels of RabbitMQ", most=processes * 4, growth=0, why="(children + 1) x 4")
    one = own + plan.pool + 2 + LOOP_DESCRIPTORS
    yield Limit(name="descriptors of a child", most=one, growth=6, why=f"its connections + {LOOP_DESCRIPTORS}")
    yield Limit(name="descriptors of the parent", most=LOOP_DESCRIPTORS, growth=0, why="it opens nothing")
    yield Limit(name="MiB of the oldest child", most=100, growth=8, why="imports, and the ids of its last 10,000 messages")
    yield Limit(name="MiB of the largest child", most=100, growth=8, why="as the oldest child")
    yield Limit(name="MiB of the parent", most=90, growth=1, why="imports: it forks and waits")
    yield Limit(
        name="MiB of the host in sum", most=processes * 70, growth=16, why="(children + 1) x 70, shared pages counted in parts"
    )
    yield Limit(name="threads of a child", most=2 + plan.pool, growth=1, why="main thread, executor of `pool`, 1 to spare")
    yield Limit(
        name=PRESENCE,
        most=1,
        growth=0,
        why=f"1 that ends; one that was killed stays for row_kept + {AFTER_SECONDS / 2:g} s",
    )
    taken = processes * 2 * plan.prefetch
    yield Limit(name="rows of records", most=2 * taken, growth=5, why="2 x (children + 1) x 2 x prefetch: those in dispatch")


def _of_threaded(plan: SoakPlan) -> Iterator[Limit]:
    own = plan.units + MAINTENANCE_CONNECTIONS
    yield Limit(
        name="connections of onceonly",
        most=own + plan.threads,
        why=f"units + {MAINTENANCE_CONNECTIONS}, and 1 for each thread that dispatches in an event loop of its own",
    )
    yield Limit(name="connections of the application", most=plan.pool, why="the pool that all threads share")
    yield Limit(name="connections of RabbitMQ", most=1 + plan.threads, growth=0, why="1, and 1 for each thread that dispatches")
    yield Limit(name="channels of RabbitMQ", most=2 * (3 + plan.threads), growth=1, why="2 for each connection, 4 to receive")
    most = own + plan.pool + 1 + plan.threads * 5 + LOOP_DESCRIPTORS
    yield Limit(
        name="descriptors of the process",
        most=most,
        growth=4,
        why=f"its connections, an event loop with 2 connections for each thread, and {LOOP_DESCRIPTORS}",
    )
    yield Limit(
        name="MiB of the process",
        most=140,
        growth=10,
        why="imports, the ids of its last 10,000 messages, and the dialects of 128 dispatches",
    )
    yield Limit(
        name="threads of the process",
        most=plan.threads + 2 + 8,
        growth=1,
        why="threads, main thread, event loop, and the loop's executor and monitor",
    )
    yield Limit(name=PRESENCE, most=0, growth=0, why="one process, never killed")
    waiting = plan.requests_rate * (RELAY_AFTER_SECONDS + 5) + 2 * plan.threads
    yield Limit(name="rows of records", most=waiting, growth=5, why="requests x (relay_after + 5 s) + 2 x threads")


def _of_celery(plan: SoakPlan) -> Iterator[Limit]:
    processes = plan.children + 1  # one that was killed is replaced before the server has noticed its end
    yield Limit(
        name="connections of onceonly",
        most=processes * 3 + 3 + MAINTENANCE_CONNECTIONS,
        why=f"(children + 1) x 3 + 3 of the main process + {MAINTENANCE_CONNECTIONS}",
    )
    yield Limit(name="connections of the application", most=processes, why="children + 1")
    yield Limit(
        name="connections of RabbitMQ",
        most=(processes + 1) * 2 + 2,
        growth=1,
        why="(children + 1, and the main process) x 2 that send tasks and messages, + 2 of Celery's consumer",
    )
    yield Limit(name="channels of RabbitMQ", most=(processes + 1) * 4 + 4, growth=1, why="twice the connections")
    inherited = 40 + 4 * plan.children
    yield Limit(
        name="descriptors of a child",
        most=inherited + 20,
        growth=6,
        why="those of the parent, and its own connections",
    )
    yield Limit(name="descriptors of the parent", most=inherited, growth=2, why="its connections, and pipes of its children")
    yield Limit(name="MiB of the largest child", most=130, growth=10, why="imports, and what it has in work")
    yield Limit(name="MiB of the parent", most=140, growth=6, why="imports, and the ids of its last 10,000 messages")
    yield Limit(name="MiB of the host in sum", most=processes * 90, growth=24, why="(children + 1) x 90, shared pages in parts")
    yield Limit(name="threads of a child", most=8, growth=1, why="main thread, sender with its executors")
    yield Limit(name=PRESENCE, most=1, growth=0, why="1 that ends")
    yield Limit(
        name="rows of records",
        most=4 * processes * plan.prefetch + plan.orders_rate * 2 * (RELAY_AFTER_SECONDS + 5),
        growth=5,
        why="in dispatch, and for relay_after those of a process that was killed",
    )


def _of_rows(plan: SoakPlan) -> Iterator[Limit]:
    kept = plan.retention * 13 / 12 + SLACK_SECONDS
    handled = plan.requests_rate if plan.host == "threaded" else plan.orders_rate
    why = f"rate x (retention x 13/12 + {SLACK_SECONDS:g} s)"
    yield Limit(name="rows of claims", most=1.2 * handled * kept, growth=0.2 * handled * kept, why=why)
    keyed = 2 * (plan.orders_rate + plan.requests_rate) if plan.host == "celery" else plan.requests_rate
    # no limit of growth: they follow the rate of the last minutes, and without deletion the hour's would exceed `most`
    yield Limit(name="rows of keys", most=1.2 * keyed * kept, why=why)
    yield Limit(name="rows of starts", most=plan.children * 2 * plan.prefetch, growth=4, why="what runs alone, or did and died")
    yield Limit(name="rows of dead letters", most=0, why="nothing fails for long")
