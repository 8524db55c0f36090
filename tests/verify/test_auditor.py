"""What no mutant reaches by a short way, shown to the auditor directly: states that must never be."""

from typing import Any

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.store import Claim, StoreWorld
from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.identity import Identity, fingerprint
from onceonly.model.message import Delivery, Failure, FailureKind, Message, Send
from onceonly_verify.environment import CheckEnvironment
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.invariants.copies import wrong_copy
from onceonly_verify.names import reason_blaming
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
    """Return a store in which these were handled: body and attempt."""
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


OWN = Failure(kind=FailureKind.EXCEPTION, reason=reason_blaming("the handler failed", "a"))
OTHERS = Failure(kind=FailureKind.EXCEPTION, reason=reason_blaming("the handler failed", "b"))
ORDER = Message(id="a", source="upstream", type="order", body=b"a")


def delivered(send: Send) -> Delivery:
    """Return the delivery of what was sent."""
    return arrival(1, SHOP, *encode(send), suspect=False)


def sent_back(send: Send, *held: Send) -> str:
    """Judge a copy that a worker sends back which has these deliveries."""
    call = PortOperation("send", WorldPart("broker", ()), lambda world: (world, ()), ((send,),))
    return wrong_copy(call, [delivered(each) for each in held])


def kept(letter: DeadLetter, *held: Send) -> str:
    """Judge a dead letter of a worker that has these deliveries."""
    call = PortOperation("dead-letter", WorldPart("dead letters", ()), lambda world: (world, None), (letter,))
    return wrong_copy(call, [delivered(each) for each in held])


def test_a_copy_continues_the_history_of_its_own_message() -> None:
    """One failure more, or none; also of the copy that knows most."""
    first = Send(message=ORDER, to=SHOP)
    once = replace(first, attempts=1, history=(OWN,))
    assert sent_back(once, first) == ""
    assert sent_back(replace(once, attempts=2, history=(OWN, OWN)), first, once) == ""
    assert sent_back(replace(first, held=1), first) == ""
    assert sent_back(Send(message=replace(ORDER, id="a.0", source=SHOP), to=BILLING), once) == ""  # an effect


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"message": replace(ORDER, body=b"b")}, "another body or other headers", id="body"),
        pytest.param({"message": replace(ORDER, time="2026-01-01T00:00:00Z")}, "another body or other headers", id="header"),
        pytest.param({"alone": False}, "no longer marked", id="mark"),
        pytest.param({"held": 0}, "was held 0 times", id="held"),
        pytest.param({"attempts": 0, "history": ()}, "failed 1 times", id="count"),
        pytest.param({"history": ()}, "does not continue", id="history"),
        pytest.param({"history": (OWN, OTHERS), "attempts": 2}, "has a failure of 'b'", id="another's failure"),
        pytest.param({"history": (OWN, OWN)}, "has 2 failures", id="too many failures"),
    ],
)
def test_a_copy_that_is_not_one_of_its_message_is_seen(changes: dict[str, Any], words: str) -> None:
    """Whatever differs from the delivery that its worker has."""
    held = Send(message=ORDER, to=SHOP, attempts=1, history=(OWN,), alone=True, held=1)
    assert words in sent_back(replace(held, **changes), held)


def test_a_dead_letter_is_about_its_own_message() -> None:
    """With the body and the headers of a delivery that its worker has, and the failures of that message."""
    held = Send(message=ORDER, to=SHOP, attempts=1, history=(OWN,))
    headers, body = encode(held)
    letter = DeadLetter(endpoint=SHOP, reason="", headers=headers, body=body, message=ORDER, attempts=2, history=(OWN, OWN))
    assert kept(letter, held) == ""
    assert "of another message" in kept(replace(letter, body=b"b"), held)
    assert "is about 'b'" in kept(replace(letter, message=replace(ORDER, body=b"b")), held)
    assert "has a failure of 'b'" in kept(replace(letter, history=(OWN, OTHERS)), held)
