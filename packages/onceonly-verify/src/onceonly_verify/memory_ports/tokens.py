"""The memory token store: prepared and live tokens in an immutable world. It is the one that the model checker explores."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.errors import ConflictError
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.environment import Clock


class TokensWorld(Struct, frozen=True):
    """The tokens there are: a token is in one of the two sets, or gone."""

    prepared: frozenset[PreparedToken] = frozenset()
    live: frozenset[Token] = frozenset()


PLACE = WorldPart("tokens", TokensWorld())


def prepare(world: TokensWorld, owned: tuple[tuple[Token, Owner], ...], now: int) -> Step:
    """Create tokens, those whose ids are free; a ConflictError when one is not."""
    taken = world.live.union(each.token for each in world.prepared)
    fresh = frozenset(PreparedToken(token, owner, now) for token, owner in owned if token not in taken)
    outcome = Raises(ConflictError, "a token with this id already exists") if len(fresh) < len(owned) else None
    return replace(world, prepared=world.prepared | fresh), outcome


def activate(world: TokensWorld, tokens: tuple[Token, ...]) -> Step:
    ready = frozenset(each for each in world.prepared if each.token in tokens)
    return TokensWorld(world.prepared - ready, world.live.union(each.token for each in ready)), None


def live(world: TokensWorld, tokens: tuple[Token, ...]) -> Step:
    return world, world.live.intersection(tokens)


def remove(world: TokensWorld, tokens: tuple[Token, ...]) -> Step:
    """Remove tokens, whatever state they are in."""
    return TokensWorld(_without(world, tokens), world.live.difference(tokens)), None


def discard(world: TokensWorld, tokens: tuple[Token, ...]) -> Step:
    return replace(world, prepared=_without(world, tokens)), None


def prepared(world: TokensWorld, older_than: int, limit: int) -> Step:
    """List old ones that are not live, oldest first."""
    old = sorted((each.at, each) for each in world.prepared if each.at < older_than)
    return world, tuple(each for _, each in old[:limit])


def _without(world: TokensWorld, tokens: tuple[Token, ...]) -> frozenset[PreparedToken]:
    return frozenset(each for each in world.prepared if each.token not in tokens)


class MemoryTokens:
    """The tokens of all endpoints that share a driver."""

    place = PLACE

    def __init__(self, driver: WorldDriver, *, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that holds the tokens; the clock says when they were prepared."""
        self._driver = driver
        self._clock = clock or WallClock()

    async def prepare(self, owners: Mapping[Token, Owner]) -> None:
        await self._each("token-prepare", prepare, tuple(owners.items()), self._clock.now())

    async def activate(self, tokens: Sequence[Token]) -> None:
        await self._each("token-activate", activate, tokens)

    async def live(self, tokens: Sequence[Token]) -> frozenset[Token]:
        found: frozenset[Token] = await self._driver.perform(PortOperation("token-live", PLACE, live, (tuple(tokens),)))
        return found

    async def remove(self, tokens: Sequence[Token]) -> None:
        await self._each("token-remove", remove, tokens)

    async def discard(self, tokens: Sequence[Token]) -> None:
        """Remove tokens that are still prepared; see the port."""
        await self._each("token-discard", discard, tokens)

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        operation = PortOperation("token-prepared", PLACE, prepared, (older_than, limit))
        found: tuple[PreparedToken, ...] = await self._driver.perform(operation)
        return found

    async def _each(self, point: str, function: Callable[..., Step], items: Sequence[Any], *rest: Any) -> None:
        await self._driver.perform(PortOperation(point, PLACE, function, (tuple(items), *rest), many=True))
