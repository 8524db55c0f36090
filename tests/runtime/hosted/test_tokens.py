"""Tokens with a host: a message is handled while its token is live, whoever delivers it and however often."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from onceonly import Context, Endpoint, Retry, Tokens
from onceonly.assembly.deduplication import open_token_issuer
from onceonly.model.token import Token
from tests.endpoint.hosted_harness import Order, count, letters, order


def shop_in(folder: Path, place: str) -> tuple[Endpoint, list[str]]:
    """Make an endpoint whose handler fails at its first run."""
    url = place.format(folder=folder)
    runs: list[str] = []
    shop = Endpoint("shop", store=f"sqlite:///{folder}/shop.db", deduplication=Tokens(url), retry=Retry(immediate=1, delayed=0))

    @shop.handler
    async def place_order(order: Order, context: Context) -> None:
        runs.append(f"{order.id} {context.attempts}")
        if context.attempts == 0:
            raise ValueError("no")

    return shop, runs


def with_token(name: str) -> Mapping[str, object]:
    """Return the headers of a message with a token of that name."""
    return {**order(name).headers, "ce-token": name}  # type: ignore[dict-item] # a mapping, as `order` makes it


@pytest.mark.parametrize("place", ["", "sqlite:///{folder}/tokens.db"])
async def test_a_message_is_handled_while_its_token_is_live(tmp_path: Path, place: str) -> None:
    """Its attempts use one token. A copy that comes later is settled and not handled, and so is one without a live token."""
    shop, runs = shop_in(tmp_path, place)
    async with shop.hosted() as hosted:
        async with open_token_issuer(shop.settings) as tokens:
            await tokens.add([Token("a", "shop")])
        (failed,) = await hosted.handle([order("a", headers=with_token("a"))])
        assert not failed.is_settled
        (done, same) = await hosted.handle([order("a", 2, headers=with_token("a")), order("a", headers=with_token("a"))])
        (copy,) = await hosted.handle([order("a", headers=with_token("a"))])
        (never,) = await hosted.handle([order("b", headers=with_token("b"))])
    assert [(each.is_settled, each.is_dead) for each in (done, same, copy, never)] == [(True, False)] * 4
    assert runs == ["a 0", "a 1"]
    assert await letters(shop) == []
    if not place:
        assert await count(str(shop.settings.store), "onceonly_tokens") == 0


async def test_a_message_without_a_token_is_a_dead_letter(tmp_path: Path) -> None:
    """Its reason says which senders issue one: a host that receives from other programs cannot use tokens."""
    shop, runs = shop_in(tmp_path, "")
    async with shop.hosted() as hosted:
        (outcome,) = await hosted.handle([order("a")])
    assert outcome.is_dead
    assert "has no token" in outcome.reason
    assert runs == []
