"""Documents that a service drops at the instant that was given with their write, and who drops them."""

from collections.abc import Callable
from functools import cache
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.documents import DocumentsWorld
from onceonly.adapters.memory.world import PortOperation
from onceonly.ports.documents import Change
from onceonly_verify.driver import CheckerDriver


class ExpiringWorld(DocumentsWorld, frozen=True):
    """Documents, and the instant from which the service may drop each of them."""

    expires: frozenset[tuple[str, int]] = frozenset()

    def expired(self, now: int) -> frozenset[str]:
        """Name the documents that the service may drop."""
        there = {each.key for each in self.written if each.body is not None}
        return frozenset(key for key, at in self.expires if at < now and key in there)


class ExpiringDriver:
    """A driver whose saves keep what the memory adapter ignores: the hint when a document expires."""

    def __init__(self, driver: CheckerDriver) -> None:
        """Hand everything on to this one."""
        self._driver = driver

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        """Hand a call on."""
        if operation.point == "save":
            operation = operation._replace(function=_keeping_expiry(operation.function))
        return await self._driver.perform(operation, patience)

    def at_once(self, operation: PortOperation) -> None:
        """Hand it on."""
        self._driver.at_once(operation)

    def token(self) -> Any:
        """Give the next name."""
        return self._driver.token()


def drop_expired(world: ExpiringWorld, now: int) -> tuple[ExpiringWorld, None]:
    """Drop what has expired, as the service does by its own clock."""
    gone = world.expired(now)
    left = frozenset(replace(each, body=None) if each.key in gone else each for each in world.written)
    return ExpiringWorld(left, frozenset((key, at) for key, at in world.expires if key not in gone)), None


@cache
def _keeping_expiry(function: Callable[..., Any]) -> Callable[..., Any]:
    def save(world: ExpiringWorld, changes: tuple[Change, ...]) -> tuple[ExpiringWorld, Any]:
        after, answers = function(world, changes)
        expires = dict(world.expires)
        for change, version in zip(changes, answers, strict=True):
            if version is not None:
                expires[change.key] = change.expires
        return ExpiringWorld(after.written, frozenset((key, at) for key, at in expires.items() if at)), answers

    return save
