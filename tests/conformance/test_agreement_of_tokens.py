"""Tokens and dedup store on documents do what the memory ones do, which the model checker explores, on random histories."""

import random
from typing import Any

import pytest

from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.token import Owner, Token
from onceonly_conformance.on_documents import dedup_and_token_subjects
from onceonly_conformance.store_subject import LATER
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests.conformance.memory_effect_subjects import MemoryDedup, MemoryTokenPlace
from tests.conformance.memory_subjects import MemoryPlace

SEEDS = range(6)
STEPS = 150
OWNERS = (Owner("shop", "order/17", Identity("till", "m1")), Owner("mail", "", Identity("", "m2")))
TOKENS = [Token(f"t{number}", endpoint) for number in range(6) for endpoint in (ENDPOINT, OTHER)]
KEYS = [bytes([number]) * 16 for number in range(8)]


async def done(call: Any, *arguments: Any) -> str:
    """Make a call; gives how it ended."""
    try:
        await call(*arguments)
    except ConflictError:
        return "ConflictError"
    return "done"


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_tokens_do_the_same(seed: int) -> None:
    """Several processes in each world; ids are used again as well, which is a ConflictError in both."""
    rng = random.Random(seed)  # noqa: S311 - a history that can be repeated
    worlds = (MemoryTokenPlace(), dedup_and_token_subjects(MemoryPlace()).tokens)
    processes = [[await world.tokens() for world in worlds] for _ in range(3)]
    ends = set()
    for _ in range(STEPS):
        pair, call = rng.choice(processes), rng.choice(("prepare", "activate", "discard", "remove"))
        tokens = rng.sample(TOKENS, rng.randint(1, 3))
        arguments = ({each: rng.choice(OWNERS) for each in tokens} if call == "prepare" else tokens,)
        first, second = [await done(getattr(store, call), *arguments) for store in pair]
        assert first == second
        looks = [(await store.live(TOKENS), set(await store.prepared(LATER, 100))) for store in rng.choice(processes)]
        assert looks[0] == looks[1]
        ends |= {first, *(("live",) if looks[0][0] else ()), *(("prepared",) if looks[0][1] else ())}
        for world in worlds:
            await world.pass_time(1)
    assert ends == {"done", "ConflictError", "live", "prepared"}


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_dedup_stores_do_the_same(seed: int) -> None:
    """Several processes in each world, within the retention."""
    rng = random.Random(seed)  # noqa: S311 - a history that can be repeated
    worlds = (MemoryDedup(), dedup_and_token_subjects(MemoryPlace()).dedup)
    processes = [[await world.dedup_store() for world in worlds] for _ in range(3)]
    sizes = set()
    for _ in range(STEPS):
        pair, call = rng.choice(processes), rng.choice(("add", "remove"))
        keys = rng.sample(KEYS, rng.randint(0, 3))
        for store in pair:
            await getattr(store, call)(keys)
        first, second = [await store.contains(KEYS) for store in rng.choice(processes)]
        assert first == second
        sizes.add(len(first))
        for world in worlds:
            await world.pass_time(1)
    assert len(sizes) > 3
