"""Broken kinds of things."""

import asyncio

from msgspec.structs import replace

from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused
from onceonly.ports.effects import ArtifactStore
from onceonly.testing.artifact_suite import ArtifactStoreSubject

SHORT = 65_536


class WrappedRegisterStore:
    """A kind of thing whose calls go through a `WrappedArtifacts`; `known` is for what this process alone remembers."""

    def __init__(self, owner: "WrappedArtifacts", inner: ArtifactStore) -> None:
        self.inner = inner
        self.known: dict[str, bytes | None] = {}
        self._owner = owner

    async def create(self, thing: Artifact) -> None:
        """Make, as the wrapper does it."""
        await self._owner.create(self, thing)

    async def delete(self, name: str) -> None:
        """Unmake, as the wrapper does it."""
        await self._owner.delete(self, name)

    async def read(self, name: str) -> bytes | None:
        """Read, as the wrapper does it."""
        return await self._owner.read(self, name)

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List, as the wrapper does it."""
        return await self._owner.names(self, prefix)


class WrappedArtifacts:
    """A subject that passes everything on. What breaks a promise overrides one of these methods."""

    def __init__(self, inner: ArtifactStoreSubject) -> None:
        self.subject = inner

    async def things(self) -> ArtifactStore:
        """Open the place."""
        return WrappedRegisterStore(self, await self.subject.things())

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Make a thing."""
        await things.inner.create(thing)

    async def delete(self, things: WrappedRegisterStore, name: str) -> None:
        """Unmake a thing."""
        await things.inner.delete(name)

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Read a thing."""
        return await things.inner.read(name)

    async def names(self, things: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """List things."""
        return await things.inner.names(prefix)


class StrictArtifacts(WrappedArtifacts):
    """Complains about what is not there."""

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Demand it."""
        data = await things.inner.read(name)
        if data is None:
            raise LookupError(name)
        return data

    async def delete(self, things: WrappedRegisterStore, name: str) -> None:
        """Demand it."""
        await self.read(things, name)
        await things.inner.delete(name)


class CachingArtifacts(WrappedArtifacts):
    """Answers what it answered before."""

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Read once."""
        if name not in things.known:
            things.known[name] = await things.inner.read(name)
        return things.known[name]


class PrivateArtifacts(WrappedArtifacts):
    """Keeps things in the process that made them."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Keep it."""
        things.known[thing.name] = thing.data

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Look there."""
        return things.known.get(name)


class NullArtifacts(WrappedArtifacts):
    """Takes empty data for none."""

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Mix them up."""
        return await things.inner.read(name) or None


class ShortArtifacts(WrappedArtifacts):
    """Keeps the beginning of what is large."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Cut it."""
        await things.inner.create(replace(thing, data=thing.data[:SHORT]))


class TidyingArtifacts(WrappedArtifacts):
    """Gives things names that any system takes."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Change the name."""
        await things.inner.create(replace(thing, name=_tidy(thing.name)))

    async def read(self, things: WrappedRegisterStore, name: str) -> bytes | None:
        """Change the name."""
        return await things.inner.read(_tidy(name))


class OnceArtifacts(WrappedArtifacts):
    """Takes the second call for somebody else's."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Look first."""
        if await things.inner.read(thing.name) is not None:
            raise CommitRefused("the name is taken")
        await things.inner.create(thing)


class NumberingArtifacts(WrappedArtifacts):
    """Makes a second thing of the second call."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Make one more."""
        again = await things.inner.read(thing.name) is not None
        await things.inner.create(replace(thing, name=f"{thing.name} (2)") if again else thing)


class KeepingArtifacts(WrappedArtifacts):
    """Unmakes nothing."""

    async def delete(self, things: WrappedRegisterStore, name: str) -> None:
        """Do nothing."""


class SweepingArtifacts(WrappedArtifacts):
    """Unmakes all that begins alike."""

    async def delete(self, things: WrappedRegisterStore, name: str) -> None:
        """Take the name for a prefix."""
        for each in await things.inner.names(name):
            await things.inner.delete(each)


class BaseNameArtifacts(WrappedArtifacts):
    """Lists names without what is before the last '/'."""

    async def names(self, things: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """Cut them."""
        return tuple(name.rsplit("/", 1)[-1] for name in await things.inner.names(prefix))


class FolderArtifacts(WrappedArtifacts):
    """Lists whole folders."""

    async def names(self, things: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """Take the prefix for a folder."""
        return await things.inner.names(prefix.rpartition("/")[0])


class GrowingArtifacts(WrappedArtifacts):
    """Writes piece by piece, under the final name."""

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Write the half of it, then all."""
        if await things.inner.read(thing.name) == thing.data:
            return
        await things.inner.delete(thing.name)
        await things.inner.create(replace(thing, data=thing.data[: len(thing.data) // 2]))
        await asyncio.sleep(0)
        await things.inner.delete(thing.name)
        await things.inner.create(thing)


class ReservingArtifacts(WrappedArtifacts):
    """Reserves a name first, and never gives back what a dead process reserved."""

    def __init__(self, inner: ArtifactStoreSubject) -> None:
        super().__init__(inner)
        self._reserved: set[str] = set()

    async def create(self, things: WrappedRegisterStore, thing: Artifact) -> None:
        """Reserve, then make."""
        if thing.name in self._reserved:
            raise CommitFailed("the name is reserved")
        self._reserved.add(thing.name)
        await asyncio.sleep(0)
        await things.inner.create(thing)
        self._reserved.discard(thing.name)


def _tidy(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
