"""What can be done with dead letters."""

from collections import Counter

import pytest

from onceonly.cli.letters import Chosen, choose, find, retry
from onceonly.drivers.memory import Live
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.message import Message
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.serialization.cloudevents import is_copy, take_apart
from onceonly.stores.memory import MemoryDeadLetters
from onceonly.testing.clock import ManualClock
from onceonly.transports.memory import MemoryTransport


def letter(number: int, *, type_: str = "PlaceOrder", reason: str = "boom", endpoint: str = "shop") -> DeadLetter:
    """Make a letter with a message."""
    message = Message(id=str(number), source="cli", type=type_, body=b'{"n": %d}' % number)
    return DeadLetter(endpoint=endpoint, reason=reason, headers=(), body=message.body, message=message, attempts=8)


class Desk:
    """A broker with one endpoint, and its dead letters."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        driver = Live()
        self.letters = MemoryDeadLetters(driver, clock=self.clock)
        self.transport = MemoryTransport(driver, "shop", clock=self.clock)

    async def opened(self, *letters: DeadLetter) -> "Desk":
        """Declare the endpoint, and store these letters."""
        await self.transport.declare([Topology(endpoint="shop")])
        for each in letters:
            await self.letters.add(each)
        return self


async def test_letters_are_chosen_by_filter_however_many_there_are() -> None:
    """All pages are read, unless a limit is given."""
    desk = await Desk().opened(*(letter(n, type_="even" if n % 2 == 0 else "odd") for n in range(250)))
    assert len(await choose(desk.letters, Chosen(filter=Filter(type="even")))) == 125
    assert len(await choose(desk.letters, Chosen(), limit=7)) == 7


async def test_the_beginning_of_a_key_is_enough_if_it_is_the_only_one() -> None:
    """A key that names nothing, or too much, is an error that says so."""
    desk = await Desk().opened(*(letter(n) for n in range(40)))
    wanted = letter(3)
    assert (await find(desk.letters, wanted.key)).key == (await find(desk.letters, wanted.key[:20])).key == wanted.key
    with pytest.raises(SetupError, match="no dead letter"):
        await find(desk.letters, "nothing")
    ((shared, _),) = Counter(letter(n).key[0] for n in range(40)).most_common(1)
    with pytest.raises(SetupError, match="give more digits"):
        await find(desk.letters, shared)


async def test_a_retried_message_goes_back_with_its_identity_and_its_letter_is_gone() -> None:
    """It comes as a copy of ours, alone in its unit, with a fresh count, and not before its letter was removed."""
    desk = await Desk().opened(letter(1), letter(2))
    (first,) = await choose(desk.letters, Chosen(keys=(letter(1).key,)))
    done = await retry([first], desk.letters, desk.transport, clock=desk.clock, head_start=0.05)
    assert (done.sent, done.kept) == (1, ())
    assert [left.key for left in await choose(desk.letters, Chosen())] == [letter(2).key]
    assert await desk.transport.receive(10, 0) == ()
    desk.clock.advance(50)
    (delivery,) = await desk.transport.receive(10, 0)
    event = take_apart(delivery.headers, delivery.body)
    assert (event.attributes["source"], event.attributes["id"], event.body) == ("cli", "1", b'{"n": 1}')
    assert is_copy(delivery)
    assert delivery.alone
    assert delivery.attempts == 0


async def test_a_letter_that_cannot_be_retried_stays_and_says_why() -> None:
    """No identity, or no queue to go back to."""
    nameless = DeadLetter(endpoint="shop", reason="no id", headers=(), body=b"?")
    homeless = letter(1, endpoint="gone")
    desk = await Desk().opened(nameless, homeless)
    found = await choose(desk.letters, Chosen())
    done = await retry(found, desk.letters, desk.transport, clock=desk.clock, head_start=0.05)
    reasons = dict(done.kept)
    assert done.sent == 0
    assert "no identity" in reasons[nameless.key]
    assert "no queue for endpoint 'gone'" in reasons[homeless.key]
    assert len(await choose(desk.letters, Chosen())) == 2


async def test_a_letter_is_kept_when_it_could_be_a_new_one_already() -> None:
    """Without any head start the message may have failed again: its letter stays."""
    desk = await Desk().opened(letter(1))
    done = await retry([letter(1)], desk.letters, desk.transport, clock=desk.clock, head_start=0)
    assert done.sent == 1
    assert "too slowly" in dict(done.kept)[letter(1).key]
    assert len(await choose(desk.letters, Chosen())) == 1
