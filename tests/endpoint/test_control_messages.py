"""Control messages: what they need, what can go wrong with them, who looks after those that only send."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from onceonly import CommitFailed, ControlMessages, Endpoint, OutcomeUnknown, SetupError, Tokens
from onceonly.algorithms.control import CONTROL, control_of
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.endpoint.host import host_of
from onceonly.errors import InvalidHandler
from onceonly.model.errors import RetryableError
from onceonly.model.message import Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from tests.endpoint.transaction_harness import Paid, SimulatedEndpoint, deposit


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedEndpoint]:
    """Open an endpoint."""
    simulated = SimulatedEndpoint()
    async with simulated.opened():
        yield simulated


class Away:
    """A transport whose broker is away, or answers badly, whenever it is to send control messages."""

    def __init__(self, inner: Any, answer: Answer | type[RetryableError]) -> None:
        self._inner, self._answer = inner, answer
        self.traits = inner.traits

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Answer badly."""
        if not isinstance(self._answer, Answer):
            raise self._answer("the broker is away")
        return (self._answer,) * len(sends)


@pytest.mark.parametrize("answer", [CommitFailed, OutcomeUnknown, Answer.REFUSED, Answer.UNKNOWN])
async def test_without_a_broker_nothing_is_committed(simulated: SimulatedEndpoint, answer: Any) -> None:
    """The caller is told so, and that nothing happened; the key is free for the next attempt."""
    broken = simulated.ports._replace(transport=Away(simulated.ports.transport, answer))
    with host_of(simulated.bank).bind(broken, environment=simulated.environment):
        with pytest.raises(CommitFailed) as raised:
            async with simulated.bank.transaction(idempotency_key="k") as tx:
                await deposit(tx)
        assert answer is CommitFailed or "nothing was committed" in str(raised.value)
    assert await simulated.balance() == 0
    async with simulated.bank.transaction(idempotency_key="k") as tx:
        await deposit(tx)
    assert await simulated.balance() == 1


async def test_what_the_broker_refuses_is_tried_until_it_takes_it(simulated: SimulatedEndpoint) -> None:
    """An unknown destination: the transaction is committed, its message waits for a person who makes the queue."""
    async with simulated.bank.transaction() as tx:
        tx.send(Paid("A"), to="nowhere")
    for seconds in (41, 51, 51):
        assert await simulated.pass_time(seconds) == [CONTROL]
    await simulated.ports.transport.declare([Topology(endpoint="nowhere")])
    assert await simulated.pass_time(51) == [CONTROL]
    assert (await simulated.ports.transport.depth("nowhere")).waiting == 1
    assert await simulated.pass_time(1000) == []


async def test_a_control_message_that_cannot_be_read_is_a_dead_letter(simulated: SimulatedEndpoint) -> None:
    """Somebody has written into the queue, or a newer version has."""
    async with simulated.bank.transaction() as tx:
        await deposit(tx)
    await simulated.received()
    simulated.clock.advance(41_000)
    (found,) = await simulated.ports.transport.receive(10, 0)
    report = await deliver([_with_body(found, b"{}")], simulated.ports)
    assert report == BatchReport(dead=1)
    (letter,) = await simulated.ports.dead_letters.page(Filter())
    assert "the control message cannot be processed" in letter.reason


def _with_body(found: Any, body: bytes) -> Any:
    return replace(found, body=body)


async def test_a_control_message_says_where_to_look(simulated: SimulatedEndpoint) -> None:
    """The attempt, the key and the document."""
    async with simulated.bank.transaction(idempotency_key="k") as tx:
        await deposit(tx)
    await simulated.received()
    simulated.clock.advance(41_000)
    (found,) = await simulated.ports.transport.receive(10, 0)
    control = control_of(found)
    assert (control.endpoint, control.key, control.unit, control.look) == ("bank", "k", "entity/Account/A", 1)


async def test_a_process_in_which_the_endpoint_is_not_open_opens_what_it_needs() -> None:
    """As a script does, beside a worker that runs elsewhere."""
    simulated = SimulatedEndpoint()
    async with simulated.opened():
        outside = SimulatedEndpoint(store=simulated.bank.settings.store, transport=simulated.bank.settings.transport)
        async with outside.bank.transaction() as tx:
            await deposit(tx)
        assert await simulated.received() == ["Deposit"]
        assert await simulated.balance() == 1


async def test_who_only_sends_must_name_who_looks_after_it(simulated: SimulatedEndpoint) -> None:
    """Without that it is refused: at its start, and at each transaction."""
    web = sending_only(simulated)
    with pytest.raises(InvalidHandler, match="processed_by"):
        async with web.opened():
            pass
    elsewhere = Endpoint("web", store="redis://127.0.0.1:1/0", transport=web.settings.transport)
    with pytest.raises(SetupError, match=r'has no handlers.*processed_by="'):
        async with elsewhere.transaction():
            pass


async def test_another_endpoints_worker_finishes_what_one_left_that_only_sends(simulated: SimulatedEndpoint) -> None:
    """Its process died after the commit; with a client's key and without."""
    for number, key in enumerate((None, "k")):
        web = sending_only(simulated, processed_by="bank")
        async with host_of(web).opened(environment=simulated.environment, observer=CrashAt("after-commit")):
            with pytest.raises(ProcessCrash):
                async with web.transaction(idempotency_key=key) as tx:
                    await deposit(tx, key=f"A{number}")
        assert await simulated.received() == []
        assert await simulated.pass_time(11) == [CONTROL, "Deposit"]
        assert await simulated.pass_time(10_000) == []
    assert simulated.handled == ["B", "B"]


async def test_a_control_message_to_an_endpoint_that_is_nowhere_ends_the_transaction(simulated: SimulatedEndpoint) -> None:
    """With the name of the queue that is missing."""
    web = sending_only(simulated, processed_by="nobody")
    async with host_of(web).opened(environment=simulated.environment):
        with pytest.raises(CommitFailed, match="Check that endpoint 'nobody' has a queue"):
            async with web.transaction() as tx:
                await deposit(tx)
    assert await simulated.balance() == 0


def sending_only(simulated: SimulatedEndpoint, **control: Any) -> Endpoint:
    """Make an endpoint without handlers, on the store and the transport of the simulated one."""
    settings = simulated.bank.settings
    return Endpoint("web", store=settings.store, transport=settings.transport, control=ControlMessages(**control))


def test_settings_that_contradict_each_other_are_refused() -> None:
    """With the arithmetic."""
    day = timedelta(days=1)
    for settings, words in (
        ({"delays": ()}, "delays must be a list of timedeltas longer than 0"),
        ({"delays": (day, timedelta(hours=1))}, "sort them"),
        ({"delays": (timedelta(minutes=1),)}, "would be given up before"),
        ({"retention": timedelta(minutes=30)}, "the record must still exist"),
        ({"retention": 31 * day}, "at most 30 days"),
        ({"max_commit": timedelta()}, "must be timedeltas longer than 0"),
        ({"processed_by": "No Name"}, "an endpoint name is"),
    ):
        with pytest.raises(SetupError, match=words):
            ControlMessages(**settings)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="only a worker of this endpoint"):
        SimulatedEndpoint(control=ControlMessages(processed_by="bank"), deduplication=Tokens("memory://tokens"))
    with pytest.raises(SetupError, match="control must be ControlMessages"):
        SimulatedEndpoint(control=60)
