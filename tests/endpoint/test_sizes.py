"""Attributes that no store or transport takes: refused when they arrive, and before anything is committed that carries them."""

from datetime import UTC, datetime

import pytest

from onceonly import Endpoint
from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.cli.bulk_sender import SendTally, send_all
from onceonly.endpoint.message_builder import MessageBuilder, Origin
from onceonly.errors import InvalidEffect
from onceonly.formats.cloudevents import HISTORY, arrival
from onceonly.formats.records import decode_letter, encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.escaping import RAW_HEADER
from onceonly.model.identity import Identity
from onceonly.model.limits import LONG, LONGEST, MOST_HISTORY, SHORT
from onceonly.model.message import Failure, FailureKind, Message
from onceonly.operations.letters import moment
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from tests.endpoint.harness import delivery, endpoint, read, unreadable


def shop() -> Endpoint:
    """Make an endpoint."""
    made = endpoint()

    @made.handler(type="Order")
    async def take(order: dict[str, str]) -> None:
        """Do nothing."""

    return made


LIMITS = [
    ("id", LONG),
    ("source", LONG),
    ("type", SHORT),
    ("subject", LONG),
    ("conversationid", LONG),
    ("causationid", LONG),
    ("traceparent", LONG),
    ("token", SHORT),
    ("something", LONGEST),
]


@pytest.mark.parametrize(("name", "limit"), LIMITS)
@pytest.mark.parametrize("letter", ["x", "ö"])
def test_an_attribute_has_a_limit_in_bytes(name: str, limit: int, letter: str) -> None:
    """The reason says what it was, how long, and what to do; it does not repeat it."""
    fits = letter * (limit // len(letter.encode()))
    known = {"ce_id": "1", "ce_source": "web", "ce_type": "Order"}
    assert read(shop(), delivery(**known | {f"ce_{name}": fits}))
    found = unreadable(shop(), delivery(**known | {f"ce_{name}": fits + letter}))
    assert found.message is None
    assert f"the attribute `{name}` is" in found.reason
    assert f"the limit is {limit:,}" in found.reason
    assert len(found.reason) < 200


def test_a_history_has_a_limit() -> None:
    """Only this library writes one, of ten entries at most."""
    headers = (("ce-id", "1"), ("ce-type", "Order"))
    entry = '{"kind":"exception","reason":"r"}'
    for count in (MOST_HISTORY, MOST_HISTORY + 1):
        text = f"[{','.join([entry] * count)}]"
        found = arrival(1, "shop", (*headers, (f"ce-{HISTORY}", text)), b"{}", suspect=False)
        assert len(found.history) == count
        if count > MOST_HISTORY:
            assert "the limit is 64" in unreadable(shop(), found).reason
        else:
            assert read(shop(), found)


@pytest.mark.parametrize("at", ["123456789012345678901234567890", "-1", "99999999999999999"])
async def test_a_forged_history_is_ignored_and_its_letter_can_be_stored(at: str) -> None:
    """No store takes its numbers."""
    text = f'[{{"kind":"exception","reason":"r","at":{at}}}]'
    found = arrival(1, "shop", (("ce-id", "1"), (f"ce-{HISTORY}", text)), b"{}", suspect=False)
    assert found.history == ()
    letter = DeadLetter(endpoint="shop", reason="r", headers=found.headers, body=b"", history=found.history)
    assert decode_letter(encode_letter(letter)) == letter


async def test_a_letter_keeps_the_bytes_of_headers_that_are_not_utf8() -> None:
    """Two that differ in them alone are two letters."""
    odd = [
        DeadLetter(endpoint="shop", reason="\udcff", headers=(("a", text),), body=b"") for text in ("\udcfc", "\udcf6", r"\xfc")
    ]
    assert len({letter.key for letter in odd}) == 3
    assert odd[0].headers == (("a", r"\xfc"), (RAW_HEADER, "YQ== /A=="))
    letters = MemoryDeadLetters(Live())
    for letter in odd:
        await letters.add(letter)
        assert decode_letter(encode_letter(letter)) == letter
    assert await letters.count(Filter()) == 3


@pytest.mark.parametrize("at", [-(2**63), -(2**40), -1, 0, 2**40, 2**63 - 1, 2**64 - 1])
def test_every_number_can_be_shown_as_an_instant(at: int) -> None:
    """A letter that another program changed may have any."""
    shown = datetime.fromisoformat(moment(at))
    assert shown.tzinfo is UTC or shown.utcoffset() is not None


@pytest.mark.parametrize("name", ["x" * 256, "ö" * 128, "a\0b", "a\nb", "a\x9bb", "\ud800"])
def test_what_can_never_be_sent_is_refused_when_it_is_captured(name: str) -> None:
    """So that nothing is committed that could never be sent."""
    builder = MessageBuilder("shop", max_body=100)
    with pytest.raises(InvalidEffect, match="its type"):
        builder.build({}, "", {"type": name}, Origin(Identity("s", "1"), 0), now=1)
    longest = builder.build({}, "", {"type": "x" * 255}, Origin(Identity("s", "1"), 0), now=1)
    assert longest.message.type == "x" * 255


async def test_the_command_line_refuses_what_no_endpoint_would_take() -> None:
    """Each by itself, and the others are sent."""
    transport, tally = MemoryTransport(Live(), "shop"), SendTally()
    await transport.declare([Topology(endpoint="shop")])
    messages = [
        Message(id=id_, source="cli", type=kind, body=b"{}") for id_, kind in (("x" * 1025, "T"), ("1", "T" * 256), ("2", "T"))
    ]
    await send_all(messages, transport, to="shop", tally=tally, tick=lambda _: None)
    assert (tally.sent, len(tally.refused)) == (1, 2)
    assert "`id` is 1,025 bytes long" in tally.refused[0].reason
    assert "its type is 256 bytes long" in tally.refused[1].reason


def test_a_failure_of_now_is_kept() -> None:
    """As a retry copy carries it."""
    text = '[{"kind":"timeout","reason":"r","at":1763827200000}]'
    found = arrival(1, "shop", ((f"ce-{HISTORY}", text),), b"{}", suspect=False)
    assert found.history == (Failure(kind=FailureKind.TIMEOUT, reason="r", at=1763827200000),)
