"""A projection in memory that keeps every promise, and broken ones."""

import asyncio
from typing import Self


class WholeProjection:
    """A projection, and the place under test: versions and bodies by keys; None is a tombstone."""

    def __init__(self) -> None:
        self.stored: dict[str, tuple[int, bytes | None]] = {}

    async def projection(self) -> Self:
        """Open it: there is one."""
        return self

    async def read(self, key: str) -> bytes | None:
        """Read a body."""
        return self.stored.get(self.name(key), (0, None))[1]

    async def put(self, key: str, body: bytes, version: int) -> None:
        """Store a body, if it is newer."""
        await self.write(self.name(key), body, version)

    async def delete(self, key: str, version: int) -> None:
        """Store a tombstone, if it is newer."""
        await self.write(self.name(key), None, version)

    async def write(self, name: str, body: bytes | None, version: int) -> None:
        """Store what is newer."""
        if self.is_newer(version, self.stored.get(name)):
            self.stored[name] = (version, body)

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Compare versions."""
        return stored is None or version > stored[0]

    def name(self, key: str) -> str:
        """Return the name under which a key is stored."""
        return key


class PrefixProjection(WholeProjection):
    """Finds keys that begin alike."""

    async def read(self, key: str) -> bytes | None:
        """Read the first that begins so."""
        return next((body for name, (_, body) in self.stored.items() if name.startswith(key)), None)


class TextProjection(WholeProjection):
    """Stores text, and loses the bytes that are none."""

    async def put(self, key: str, body: bytes, version: int) -> None:
        """Store text."""
        await super().put(key, body.decode(errors="replace").encode(), version)


class EmptyIsNothingProjection(WholeProjection):
    """Takes an empty body for none."""

    async def read(self, key: str) -> bytes | None:
        """Read what is not empty."""
        return await super().read(key) or None


class CaselessProjection(WholeProjection):
    """Does not tell apart upper and lower case."""

    def name(self, key: str) -> str:
        """Fold it."""
        return key.lower()


class FirstProjection(WholeProjection):
    """Never replaces anything."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Take the first."""
        return stored is None


class SmallNumberProjection(WholeProjection):
    """Stores versions as floating-point numbers."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Compare them as such."""
        return stored is None or float(version) > float(stored[0])


class LastProjection(WholeProjection):
    """The last write wins."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Take it."""
        return True


class SortingProjection(WholeProjection):
    """Compares versions as text."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Compare them so."""
        return stored is None or str(version) > str(stored[0])


class AgainProjection(WholeProjection):
    """Takes the same version again."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Take what is not older."""
        return stored is None or version >= stored[0]


class StrictProjection(WholeProjection):
    """Complains about what is not newer."""

    async def write(self, name: str, body: bytes | None, version: int) -> None:
        """Demand a newer version."""
        if not self.is_newer(version, self.stored.get(name)):
            raise LookupError(name)
        await super().write(name, body, version)


class FromOneProjection(WholeProjection):
    """Takes a missing key for one of version 0."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Compare with 0."""
        return version > (stored[0] if stored else 0)


class KeepingProjection(WholeProjection):
    """Deletes nothing."""

    async def delete(self, key: str, version: int) -> None:
        """Do nothing."""


class SweepingProjection(WholeProjection):
    """Deletes what begins alike as well."""

    async def delete(self, key: str, version: int) -> None:
        """Delete it all."""
        for name in [name for name in self.stored if name.startswith(key)]:
            await super().delete(name, version)
        await super().delete(key, version)


class ForgettingProjection(WholeProjection):
    """Keeps no tombstones."""

    async def delete(self, key: str, version: int) -> None:
        """Drop what is older."""
        if self.is_newer(version, self.stored.get(key)):
            self.stored.pop(key, None)


class KnownOnlyProjection(WholeProjection):
    """Keeps tombstones of what was there."""

    async def delete(self, key: str, version: int) -> None:
        """Delete what is there."""
        if key in self.stored:
            await super().delete(key, version)


class BuryingProjection(WholeProjection):
    """A key that was deleted never comes back."""

    def is_newer(self, version: int, stored: tuple[int, bytes | None] | None) -> bool:
        """Refuse what is deleted."""
        return super().is_newer(version, stored) and (stored is None or stored[1] is not None)


class SecondLookProjection(WholeProjection):
    """Remembers one version of a key too few: what replaces a tombstone begins anew."""

    async def write(self, name: str, body: bytes | None, version: int) -> None:
        """Forget the version behind a tombstone."""
        stored = self.stored.get(name)
        if stored is not None and stored[1] is None and self.is_newer(version, stored):
            self.stored[name] = (0, body)
            return
        await super().write(name, body, version)


class TwoStepProjection(WholeProjection):
    """Reads, and writes some time later."""

    async def write(self, name: str, body: bytes | None, version: int) -> None:
        """Let others in between."""
        if self.is_newer(version, self.stored.get(name)):
            for _ in range(8 - version % 8):
                await asyncio.sleep(0)
            self.stored[name] = (version, body)


class GrowingProjection(WholeProjection):
    """Writes a body in two parts, and a version with the first one."""

    async def put(self, key: str, body: bytes, version: int) -> None:
        """Write half of it, then the other half."""
        if self.is_newer(version, self.stored.get(key)):
            self.stored[key] = (version, body[: len(body) // 2])
            await asyncio.sleep(0)
            self.stored[key] = (version, body)
