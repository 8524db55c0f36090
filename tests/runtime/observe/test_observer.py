"""The observer seam: every port call passes it, and without an observer there is no seam."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from inspect import getmembers, iscoroutinefunction

import pytest

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.message import FailureKind, Message, Send
from onceonly.ports.admission import Admission
from onceonly.ports.dead_letters import DeadLetters, Filter
from onceonly.ports.effects import Effects
from onceonly.ports.handlers import Handlers
from onceonly.ports.maintenance import Journals
from onceonly.ports.remote import OpenRemoteRequest, RemoteRequests
from onceonly.ports.run_markers import RunMarkers
from onceonly.ports.store import Fence, PendingRecords, Store, Unit
from onceonly.ports.transactions import Attempts, OpenTransaction, Transactions
from onceonly.ports.transport import Transport
from onceonly.runtime.observe import observed_ports as observing
from onceonly.runtime.observe.observed_ports import is_retry_copy, observed
from onceonly.runtime.observe.observer import Observers, Point, PortCall
from tests.runtime.harness import SHOP, CallTally, ScriptedHandlers, SimulatedEndpoint, failing


class WritesDown:
    """Remembers every call, in the order the calls ended."""

    def __init__(self, log: list[tuple[str, PortCall]], name: str = "") -> None:
        self._log, self._name = log, name

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Watch one call."""
        self._log.append((f"{self._name}begin", call))
        yield
        self._log.append((f"{self._name}end", call))


def test_without_an_observer_the_ports_are_the_very_same() -> None:
    """Nobody pays for what nobody watches."""
    simulated = SimulatedEndpoint()
    assert observed(simulated.ports, None) is simulated.ports


async def test_a_message_passes_the_points_in_the_order_of_the_algorithm() -> None:
    """Claim, admission, handler, commit, dispatch, retire, forget, ack: the order is the promise."""
    log: list[tuple[str, PortCall]] = []
    simulated = await SimulatedEndpoint().open("a")
    await simulated.work(also=[WritesDown(log)])
    ended = [call.point.value for side, call in log if side == "end" and call.point is not Point.RECEIVE]
    expected = ["begin", "admits", "handle", "prepare", "commit", "activate", "dispatch", "retire", "forget", "ack"]
    assert ended[: len(expected)] == expected


async def test_calls_say_which_messages_they_are_about() -> None:
    """Identities for logs and spans; deliveries have none, but are counted."""
    log: list[tuple[str, PortCall]] = []
    simulated = await SimulatedEndpoint().open("a", "b")
    await simulated.work(also=[WritesDown(log)])
    calls = {call.point: call for side, call in log if side == "end" and call.count}
    assert [identity.id for identity in calls[Point.BEGIN].identities] == ["a", "b"]
    assert [identity.id for identity in calls[Point.COMMIT].identities] == ["a", "b"]
    assert [identity.id for identity in calls[Point.HANDLE].identities] == ["b"]
    assert calls[Point.RECEIVE].count == 2
    assert calls[Point.ACK].count == 2
    assert calls[Point.DISPATCH].identities[0].source == SHOP


async def test_the_first_of_several_observers_is_outermost() -> None:
    """They nest, and each sees the call begin and end."""
    log: list[tuple[str, PortCall]] = []
    async with Observers(WritesDown(log, "outer "), WritesDown(log, "inner ")).around(PortCall(Point.ACK, SHOP)):
        pass
    assert [name for name, _ in log] == ["outer begin", "inner begin", "inner end", "outer end"]


async def test_every_call_of_every_port_is_observed() -> None:
    """Also those that only status pages and commands make."""
    simulated, tally = await SimulatedEndpoint().open("a"), CallTally()
    ports = observed(simulated.ports, tally)
    letter = DeadLetter(endpoint=SHOP, reason="r", headers=(), body=b"")
    await ports.dead_letters.add(letter)
    assert await ports.dead_letters.count(Filter()) == len(await ports.dead_letters.page(Filter())) == 1
    assert await ports.dead_letters.get(letter.key) is not None
    assert await ports.dead_letters.remove([letter.key]) == 1
    assert ports.pending is not None
    assert await ports.pending.undispatched(0, 1) == await ports.pending.find([]) == ()
    assert (await ports.transport.depth(SHOP)).waiting == 1
    await ports.transport.extend(await ports.transport.receive(1, 0.1))
    await ports.transport.declare([])
    await ports.admission.discard([])
    seen = {
        Point.DEAD_LETTER,
        Point.DEAD_COUNT,
        Point.DEAD_PAGE,
        Point.DEAD_GET,
        Point.DEAD_REMOVE,
        Point.UNDISPATCHED,
        Point.FIND,
    }
    seen |= {Point.DEPTH, Point.EXTEND, Point.RECEIVE, Point.DECLARE, Point.DISCARD}
    assert set(tally.calls) == seen
    assert tally.failures == {}


async def test_failures_are_counted_beside_the_calls() -> None:
    """The handler failed once, and its retry is a retry copy, no dispatch."""

    def script(_message: Message, _resources: object) -> None:
        if handlers.started.count("a") == 1:
            raise failing("not yet", FailureKind.EXCEPTION)

    handlers, tally = ScriptedHandlers(script), CallTally()
    simulated = await SimulatedEndpoint(handlers).open("a")
    await simulated.work(also=[tally])
    assert tally.failures == {Point.HANDLE: 1}
    assert (tally.calls[Point.HANDLE], tally.calls[Point.RETRY_COPY], tally.calls[Point.DISPATCH]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("send", "copy"),
    [
        (Send(message=Message(id="1", source="web", type="t", body=b""), to=SHOP, attempts=1), True),
        (Send(message=Message(id="1", source="web", type="t", body=b""), to=SHOP, alone=True), True),
        (Send(message=Message(id="1", source="web", type="t", body=b""), to=SHOP, due=9), True),
        (Send(message=Message(id="1", source=SHOP, type="t", body=b""), to=SHOP, due=9), False),
        (Send(message=Message(id="1", source=SHOP, type="t", body=b"")), False),
    ],
)
def test_a_retry_copy_is_told_from_a_message_of_the_endpoints_own(send: Send, copy: bool) -> None:  # noqa: FBT001 - a case
    """By what it remembers; one put off without blame by its foreign source."""
    assert is_retry_copy(send, SHOP) is copy


PORTS = {
    Store: observing.STORE,
    Fence: observing.FENCE,
    PendingRecords: observing.PENDING,
    Unit: {**observing.STORE["begin"].opens},
    Handlers: observing.HANDLERS,
    Admission: observing.ADMISSION,
    Effects: observing.EFFECTS,
    Transport: observing.TRANSPORT,
    DeadLetters: observing.DEAD_LETTERS,
    RunMarkers: observing.RUN_MARKERS,
    Transactions: observing.TRANSACTIONS,
    OpenTransaction: {**observing.TRANSACTIONS["open"].opens},
    RemoteRequests: observing.REMOTE_REQUESTS,
    OpenRemoteRequest: {**observing.REMOTE_REQUESTS["open"].opens},
    Attempts: observing.ATTEMPTS,
    Journals: observing.JOURNALS,
}
PASSED_THROUGH = {
    (RunMarkers, "find_dead"),
    (OpenTransaction, "load"),
    (OpenRemoteRequest, "request"),
    (Journals, "longest_retention"),
}
"""Calls that only read what the observed call beside them has decided."""


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.__name__)
def test_the_table_of_a_port_has_all_of_its_calls(port: type) -> None:
    """A call that is added to a port gets a point, or is listed here."""
    calls = {name for name, member in getmembers(port) if iscoroutinefunction(member)}
    assert calls - {name for known, name in PASSED_THROUGH if known is port} == set(PORTS[port])
