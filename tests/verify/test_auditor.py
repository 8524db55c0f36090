"""What no mutant reaches by a short way, shown to the auditor directly: states that must never be."""

import pytest

from onceonly.adapters.memory.store import Claim, StoreWorld
from onceonly.model.identity import Identity, fingerprint
from onceonly_verify.environment import CheckEnvironment
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.parts import FIRST_STORE
from onceonly_verify.programs import shipped
from onceonly_verify.roles import endpoint_roles
from onceonly_verify.workload import BILLING, SHOP, Workload, copies
from onceonly_verify.world import WORKERS, Bounds

CHAIN = Workload(arrivals=copies("a"), endpoints=(SHOP, BILLING))


def claim_of(text: str) -> Claim:
    """Claim a message with this body."""
    return Identity("someone", text), fingerprint(text.encode())


def handled(*rows: tuple[str, str]) -> StoreWorld:
    """Give a store in which these were handled: body and attempt."""
    return StoreWorld(claims=frozenset(claim_of(text) for text, _ in rows), notes=rows)


def verdict_on(shop: StoreWorld, billing: StoreWorld) -> str:
    """Judge a chain at its beginning, but for what its stores hold."""
    environment = CheckEnvironment(CHAIN, Bounds(), programs=shipped(), roles=endpoint_roles(CHAIN, workers=1, batch=1))
    parts, numbers = environment.parts, [*environment.initial[:WORKERS]]
    for place, world in enumerate((shop, billing), FIRST_STORE):
        parts.put(numbers, place, parts.known[place].number(world))
    return Auditor(environment, CHAIN, 12).violation((*numbers, *environment.initial[WORKERS:]))


def test_what_billing_handled_is_what_the_shop_committed() -> None:
    """The row of the very attempt that sent it."""
    assert verdict_on(handled(("a", "1.1.2")), handled(("a.0 by 1.1.2", "2.1.2"))) == ""


@pytest.mark.parametrize("shop", [handled(), handled(("a", "1.2.2"))], ids=["nothing", "another attempt"])
def test_a_ghost_is_seen_when_its_message_is_gone(shop: StoreWorld) -> None:
    """Billing acknowledged the message; the row it wrote still tells whose attempt it answers."""
    found = verdict_on(shop, handled(("a.0 by 1.1.2", "2.1.2")))
    assert found == "ghost: a message of attempt 1.1.2 of 'a' was sent, and that attempt was never committed"


@pytest.mark.parametrize(
    ("shop", "billing", "words"),
    [
        (handled(("a", "1.1.2"), ("a", "2.1.2")), handled(), "duplicate: 'a' was handled 2 times at shop"),
        (handled(), handled(("a", "1.1.2")), "stray: 'a' was handled at billing, where nobody sent it"),
        (StoreWorld(notes=(("a", "1.1.2"),)), handled(), "torn: attempt 1.1.2 of 'a' left a row at shop, but no claim"),
        (StoreWorld(claims=frozenset([claim_of("a")])), handled(), "torn: 'a' is claimed at shop, but no row was committed"),
    ],
)
def test_a_torn_or_doubled_store_is_named(shop: StoreWorld, billing: StoreWorld, words: str) -> None:
    """The verdict says what, and at which endpoint."""
    assert verdict_on(shop, billing) == words
