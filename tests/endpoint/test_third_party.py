"""Calls to services that are not ours: executed once by their key, followed up with the response, and given up honestly."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from onceonly import AtLeastOnce, Context, Endpoint, IdempotencyKey, Peer, Reject, Response, testing
from onceonly.errors import InvalidEffect
from onceonly.model.remote import third_party_at
from onceonly.model.third_party import CALL
from onceonly.testing.peers import Posted
from onceonly.types import ApiCall

API = "https://api.example/v1"
CHARGES = f"{API}/charges"


@dataclass
class Order:
    """What is to be paid."""

    id: str
    total: int


@dataclass
class Charged:
    """What follows the call up."""

    order: str


@dataclass
class Receipt:
    """What is published then."""

    order: str
    charge: str
    status: int


def shop(place: Path, *peers: Peer) -> Endpoint:
    """Return an endpoint that charges orders, on SQLite."""
    found = peers or (Peer(API, style=IdempotencyKey()),)
    endpoint = Endpoint("shop", store=f"sqlite:///{place}/shop.db", transport=f"sqlite:///{place}/queue.db", peers=list(found))

    @endpoint.handler
    async def order(message: Order, context: Context) -> None:
        form = {"amount": str(message.total), "reference": context.effect_id(0)}
        context.http.request("POST", CHARGES, form=form, then=Charged(message.id))

    @endpoint.handler
    def charged(message: Charged, context: Context) -> None:
        response = context.http.response
        charge = response.json()["id"] if response.is_success else ""
        context.publish(Receipt(message.order, charge, response.status))

    return endpoint


async def test_a_call_is_executed_once_wherever_the_process_dies(tmp_path: Path, onceonly_crash_point: str) -> None:
    """And its response is in the follow-up."""
    async with testing.run(shop(tmp_path)) as t:
        t.answer(CHARGES, Response(body=b'{"id": "ch_1"}'))
        await t.deliver(Order("A-1", 5), copies=2, crash_at=onceonly_crash_point)
        assert [(each.url, each.content_type) for each in t.posted] == [(CHARGES, "application/x-www-form-urlencoded")]
        assert Receipt("A-1", "ch_1", 200) in t.sent


async def test_an_error_of_the_client_is_a_response(tmp_path: Path) -> None:
    """It is final, and the handler sees it."""
    async with testing.run(shop(tmp_path)) as t:
        t.answer(CHARGES, Response(status=402, body=b"no money"))
        await t.deliver(Order("A-1", 5))
        assert Receipt("A-1", "", 402) in t.sent


@pytest.mark.parametrize("status", [401, 408, 409, 425, 429, 500, 503])
async def test_what_is_not_final_is_repeated_with_the_same_key_and_body(tmp_path: Path, status: int) -> None:
    """And counts no failure."""
    seen: list[bytes] = []

    def answer(posted: Posted) -> Response:
        seen.append(posted.body)
        return Response(status=status) if len(seen) < 4 else Response(body=b'{"id": "ch_1"}')

    async with testing.run(shop(tmp_path)) as t:
        t.answer(CHARGES, answer)
        await t.deliver(Order("A-1", 5))
        for _ in range(10):
            t.clock.advance(60)
            await t.settle()
        assert len(seen) == 4
        assert len(set(seen)) == 1
        assert not t.dead_letters
        assert Receipt("A-1", "ch_1", 200) in t.sent


async def test_after_its_time_a_key_is_not_used_again(tmp_path: Path) -> None:
    """The message becomes a dead letter that says what is unknown."""
    calls: list[int] = []

    def answer(_: Posted) -> Response:
        calls.append(t.clock.now())
        return Response(status=503)

    async with testing.run(shop(tmp_path)) as t:
        began = t.clock.now()
        t.answer(CHARGES, answer)
        await t.deliver(Order("A-1", 5))
        for _ in range(60):
            t.clock.advance(1800)
            await t.settle()
        (letter,) = t.dead_letters
        assert "outcome unknown: POST https://api.example/v1/charges has no final response" in letter.reason
        assert max(calls) - began < timedelta(hours=23, minutes=50) // timedelta(milliseconds=1)
        assert max(calls) - began > timedelta(hours=23) // timedelta(milliseconds=1)


@pytest.mark.parametrize("known", ["found", ""])
async def test_a_lookup_finds_out_what_became_of_it(tmp_path: Path, known: str) -> None:
    """The response that it finds is followed up; what was never executed is sent again."""
    asked: list[ApiCall] = []
    is_away = True

    async def lookup(call: ApiCall) -> Response | None:
        asked.append(call)
        return Response(body=b'{"id": "found"}') if known else None

    def answer(_: Posted) -> Response:
        return Response(status=503) if is_away else Response(body=b'{"id": "late"}')

    peer = Peer(API, style=IdempotencyKey(within=timedelta(hours=1)), lookup=lookup)
    async with testing.run(shop(tmp_path, peer)) as t:
        t.answer(CHARGES, answer)
        await t.deliver(Order("A-1", 5))
        t.clock.advance(7200)
        is_away = False
        await t.settle()
        assert Receipt("A-1", known or "late", 200) in t.sent
        assert {call.url for call in asked} == {CHARGES}
        assert not t.dead_letters


async def test_a_lookup_may_give_up(tmp_path: Path) -> None:
    """The reason is in the dead letter."""

    async def lookup(_: ApiCall) -> None:
        raise Reject("ask the bank")

    peer = Peer(API, style=IdempotencyKey(within=timedelta(hours=1)), lookup=lookup)
    async with testing.run(shop(tmp_path, peer)) as t:
        t.answer(CHARGES, Response(status=503))
        await t.deliver(Order("A-1", 5))
        t.clock.advance(7200)
        await t.settle()
        (letter,) = t.dead_letters
        assert "ask the bank" in letter.reason


async def test_ids_of_effects_stay_equal_and_differ_from_each_other(tmp_path: Path) -> None:
    """Over attempts of one message, not over messages."""
    seen: list[tuple[str, str]] = []
    endpoint = Endpoint("shop", store=f"sqlite:///{tmp_path}/shop.db", transport=f"sqlite:///{tmp_path}/queue.db")

    @endpoint.handler
    async def order(_: Order, context: Context) -> None:
        seen.append((context.effect_id(0), context.effect_id("refund")))
        if len(seen) == 1:
            raise RuntimeError("once")

    async with testing.run(endpoint, raise_failures=False) as t:
        await t.deliver(Order("A-1", 5))
        await t.deliver(Order("A-2", 5))
    assert seen[0] == seen[1] != seen[2]
    assert len({*seen[1], *seen[2]}) == 4
    assert {len(each) for each in seen[0]} == {36}


@pytest.mark.parametrize(
    ("request_line", "options", "words"),
    [
        (("POST", "https://other.example/v1"), {}, "it belongs to none of the endpoint's peers with a style="),
        (("POST", f"{API}/../admin"), {}, "it belongs to none of the endpoint's peers with a style="),
        (("POST", f"{API}/%2e%2E/admin"), {}, "it belongs to none of the endpoint's peers with a style="),
        (("POST", f"{API}evil"), {}, "it belongs to none of the endpoint's peers with a style="),
        (("HEAD", CHARGES), {}, "the method must be one of"),
        (("POST", CHARGES), {"json": {}, "form": {}}, "exclude each other"),
        (("POST", CHARGES), {"content": b"x" * 1_100_000}, "the limit is 1,048,576"),
        (("POST", CHARGES), {"headers": {"a": "b\nc"}}, "must be text on one line"),
        (("POST", CHARGES), {"then": Receipt("1", "", 0)}, "no handler of this endpoint handles Receipt"),
    ],
)
async def test_a_call_that_cannot_be_made_is_refused_at_once(
    tmp_path: Path, request_line: tuple[str, str], options: dict[str, object], words: str
) -> None:
    """With the reason."""
    peers = [Peer(API, style=AtLeastOnce())]
    endpoint = Endpoint("shop", store=f"sqlite:///{tmp_path}/s.db", transport=f"sqlite:///{tmp_path}/q.db", peers=peers)

    @endpoint.handler
    async def order(message: Order, context: Context) -> None:
        context.http.request(*request_line, **{"then": Charged(message.id), **options})  # type: ignore[arg-type]

    @endpoint.handler
    async def charged(_: Charged) -> None:
        raise AssertionError

    async with testing.run(endpoint) as t:
        with pytest.raises(InvalidEffect, match=words):
            await t.deliver(Order("A-1", 5))


async def test_of_two_peers_the_one_with_the_longer_url_is_called(tmp_path: Path) -> None:
    """Whatever their order: the handler, the simulated service and the real one take the same."""
    inner = Peer(CHARGES, style=AtLeastOnce())
    peers = (Peer(API, style=IdempotencyKey()), inner)
    assert third_party_at(f"{CHARGES}/1", peers) is third_party_at(CHARGES, peers[::-1]) is inner
    async with testing.run(shop(tmp_path, *peers)) as t:
        t.answer(CHARGES, Response(body=b'{"id": "ch_1"}'))
        await t.deliver(Order("A-1", 5))
        (call,) = (each.message for each in t.raw if each.message.extension(CALL))
        assert call.extension(CALL) == CHARGES
