"""What a worker does is data: another program beside the endpoint's own needs a row, and no change of the search."""

from typing import Any

from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.environment import CheckEnvironment
from onceonly_verify.explorer import Exploration, Explorer
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.programs import shipped
from onceonly_verify.workload import Workload, copies
from onceonly_verify.world import Bounds
from tests.verify.harness import RELAYING, forgetting_what_is_pending, sending_what_is_pending

ONE = Check(name="one message", workload=Workload(arrivals=copies("a")), bounds=Bounds(crashes=2), workers=1)


def explored(program: Any) -> tuple[Exploration, set[str]]:
    """Explore one message with a relay beside the worker."""
    relay = replace(RELAYING, program=program)
    environment = CheckEnvironment(ONE.workload, ONE.bounds, programs=shipped(), roles=(*ONE.roles, relay))
    try:
        found = Explorer(environment, Auditor(environment, ONE.workload, ONE.patience)).explore(100_000)
    finally:
        environment.trie.close()
    return found, environment.happened


def test_a_relay_runs_beside_the_worker() -> None:
    """It sends and forgets at any moment, dies as workers do, and nothing is wrong with that."""
    found, happened = explored(sending_what_is_pending)
    assert (found.complete, found.violation, found.stuck) == (True, "", 0), found.steps
    assert {"relay: send: applied", "relay: forget: applied", "relay: send: crash before", "send: applied"} <= happened


def test_a_relay_that_forgets_first_is_caught() -> None:
    """Its death loses what it forgot, and the steps tell the relay's calls from the worker's."""
    found, _ = explored(forgetting_what_is_pending)
    assert found.violation == "phantom: 'a.0 by 1.1.2' was committed as sent, but never arrived"
    told = [f"{step.who}: {step.what}: {step.outcome}" for step in found.steps]
    assert "worker B: relay: wake up for an alarm: applied" in told
    assert "worker B: relay: send 'a.0 by 1.1.2' to sink: crash before" in told


def test_each_endpoint_of_a_chain_has_workers_of_its_own() -> None:
    """Roles follow from the check: as many workers, taking as much, at each endpoint."""
    chained = replace(ONE, workload=replace(ONE.workload, endpoints=("shop", "billing")), workers=2, batch=3)
    assert [(role.endpoint, role.label, role.workers, role.batch) for role in chained.roles] == [
        ("shop", "shop: ", 2, 3),
        ("billing", "billing: ", 2, 3),
    ]
    assert chained.bound == "2 endpoints in a chain, 1 copy of 1 message, 2 workers at each endpoint, batches of 3, 2 crashes"
