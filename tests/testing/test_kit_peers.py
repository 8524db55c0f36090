"""The kit plays the other services: a test says what they answer, and sees what they have executed, each request once."""

import re
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Peer, Reject, Response, Retry, testing
from onceonly.formats.bodies import encode_body
from onceonly.testing import Posted
from tests.testing.crash_points import UNREACHED

PAYMENTS = "https://payments.example/onceonly"
CHARGE, REFUND = f"{PAYMENTS}/Charge", f"{PAYMENTS}/Refund"
metadata = MetaData()
ledger = Table(
    "ledger",
    metadata,
    Column("line", Integer, primary_key=True, autoincrement=True),
    Column("text", String(80), nullable=False),
)


@dataclass
class Order:
    """A command."""

    id: str
    total: int = 1


@dataclass
class Charge:
    """What is asked."""

    order_id: str
    total: int = 1


@dataclass
class Receipt:
    """What is answered."""

    number: int


@dataclass
class Charged:
    """What the shop tells itself afterwards."""

    order_id: str


def shop(store: str = "sqlite:///never-opened.db", peers: Any = (PAYMENTS,)) -> Endpoint:
    """Make an endpoint that has each order charged."""
    made = Endpoint(
        "shop",
        store=store,
        transport="memory://never-opened",
        metadata=metadata,
        peers=peers,
        retry=Retry(immediate=0, delayed=0),
    )

    @made.handler
    async def place(order: Order, context: Context) -> None:
        await context.http.post(CHARGE, Charge(order.id, order.total), then=Charged(order.id), headers={"X-Shop": "17"})
        if order.total < 0:
            raise ValueError("less than nothing")

    @made.handler
    async def note(done: Charged, context: Context, session: AsyncSession) -> None:
        response = context.http.response
        await session.execute(insert(ledger).values(text=f"{done.order_id} {response.status} {response.body.decode()}"))

    return made


async def lines(t: testing.EndpointRun) -> list[str]:
    """Read what was followed up."""
    async with t.session() as session:
        return list(await session.scalars(select(ledger.c.text).order_by(ledger.c.line)))


async def test_what_is_posted_is_answered_and_followed_up() -> None:
    """By what the test says; nobody is asked, and nothing is left at the other side."""
    async with testing.run(shop()) as t:
        t.answer(CHARGE, Receipt(7))
        await t.deliver(Order("a", 3))
        assert (t.posted, t.sent, await lines(t)) == ([Charge("a", 3)], [Charged("a")], ['a 200 {"number":7}'])
        (posted,) = t.posted
        assert (posted.url, posted.headers, posted.read(Charge)) == (CHARGE, (("x-shop", "17"),), Charge("a", 3))
        assert posted.response == Response(body=b'{"number":7}')
        assert t._peers.left == 0


@pytest.mark.parametrize("point", testing.CRASH_POINTS)
async def test_a_request_is_executed_once_wherever_the_process_dies(point: str) -> None:
    """However often the handler runs; and it is followed up once."""
    async with testing.run(shop()) as t:
        t.answer(CHARGE, Receipt(7))
        await t.deliver(Order("a"), copies=2, crash_at=point, must_crash=point not in UNREACHED)
        assert (t.posted, await lines(t), t._peers.left) == ([Charge("a")], ['a 200 {"number":7}'], 0)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (None, "a 204 "),
        ({"b": 1}, 'a 200 {"b":1}'),
        (b"bytes", "a 200 bytes"),
        (Response(status=409, body=b"{}"), "a 409 {}"),
        (lambda posted: Receipt(posted.read(Charge).total), 'a 200 {"number":1}'),
        (lambda posted: Response(status=404, body=posted.body), 'a 404 {"order_id":"a","total":1}'),
    ],
)
async def test_an_answer_is_whatever_a_responder_may_return(answer: object, line: str) -> None:
    """Or a function that makes it of what was posted."""
    async with testing.run(shop()) as t:
        t.answer(CHARGE, answer)
        await t.deliver(Order("a"))
        assert await lines(t) == [line]


async def test_a_function_may_reject() -> None:
    """As a responder may; that is an answer, too."""

    def refuse(posted: Posted) -> object:
        raise Reject(f"not {posted.read(Charge).order_id}")

    async with testing.run(shop()) as t:
        t.answer(CHARGE, refuse)
        await t.deliver(Order("a"))
        assert (t.posted, await lines(t)) == ([Charge("a")], ['a 422 {"rejected": "not a"}'])


async def test_another_answer_counts_from_then_on() -> None:
    """What was answered before stays as it was."""
    async with testing.run(shop()) as t:
        for number in (1, 2):
            t.answer(CHARGE, Receipt(number))
            await t.deliver(Order(str(number)))
        assert await lines(t) == ['1 200 {"number":1}', '2 200 {"number":2}']
        assert [posted.response.json(Receipt) for posted in t.posted if posted.response] == [Receipt(1), Receipt(2)]


async def test_what_a_handler_that_fails_has_posted_is_never_executed() -> None:
    """It waited there, and nobody had it executed."""
    async with testing.run(shop(), raise_failures=False) as t:
        t.answer(CHARGE)
        await t.deliver(Order("a", -1))
        assert (t.posted, await lines(t), len(t.dead_letters)) == ([], [], 1)


async def test_what_nobody_answers_ends_the_test() -> None:
    """In words that say what to write."""
    async with testing.run(shop()) as t:
        with pytest.raises(AssertionError, match=re.escape(f"t.answer({CHARGE!r}, ...)")):
            await t.deliver(Order("a"))


async def test_an_answer_that_cannot_be_meant_is_an_error() -> None:
    """A typing error must not make a test pass."""
    async with testing.run(shop()) as t:
        with pytest.raises(ValueError, match=f"not a URL of a peer of the endpoint: use one of {PAYMENTS}/OPERATION"):
            t.answer("https://payment.example/onceonly/Charge", Receipt(7))
        with pytest.raises(ValueError, match="the responder returned status 500"):
            t.answer(CHARGE, Response(status=500))
        with pytest.raises(ValueError, match="cannot be sent"):
            t.answer(CHARGE, object())
        t.answer(CHARGE, lambda _: 17j)
        with pytest.raises(AssertionError, match="cannot be sent"):
            await t.deliver(Order("a"))
    async with testing.run(shop(peers=())) as t:
        with pytest.raises(ValueError, match=r"use one of \(no peers\)"):
            t.answer(CHARGE)


async def test_the_headers_of_a_peer_are_not_asked_for() -> None:
    """A test has no token, and needs none."""

    def headers() -> dict[str, str]:
        raise AssertionError("asked for")

    async with testing.run(shop(peers=[Peer(PAYMENTS, headers=headers)])) as t:
        t.answer(CHARGE)
        await t.deliver(Order("a"))
        assert len(t.posted) == 1


def test_posted_is_equal_to_what_looks_the_same() -> None:
    """Whatever class it is of; and to nothing else."""
    asked = {"order_id": "a", "total": 1}
    posted = _posted(Charge("a"))
    assert posted == Charge("a")
    assert posted == asked
    assert posted == _posted(Charge("a"))
    for other in (Charge("b"), Order("a"), b"x", object(), _posted(Charge("a"), "Refund"), None):
        assert posted != other
    assert len({posted, _posted(Charge("a"))}) == 1
    assert repr(posted) == f'<POST {CHARGE} {{"order_id":"a","total":1}}>'


def _posted(body: object, operation: str = "Charge") -> Posted:
    data, kind = encode_body(body)
    return Posted(f"{PAYMENTS}/{operation}", data, kind, ())
