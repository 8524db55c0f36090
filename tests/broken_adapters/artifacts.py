"""Broken kinds of artifacts."""

import asyncio

from msgspec.structs import replace

from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused
from onceonly.ports.effects import ArtifactStore
from onceonly_conformance.artifact_suite import ArtifactStoreSubject

SHORT = 65_536


class WrappedRegisterStore:
    """A kind of artifact whose calls go through a `WrappedArtifacts`; `known` is for what this process alone remembers."""

    def __init__(self, owner: "WrappedArtifacts", inner: ArtifactStore) -> None:
        self.inner = inner
        self.known: dict[str, bytes | None] = {}
        self._owner = owner

    async def create(self, artifact: Artifact) -> None:
        """Make, as the wrapper does it."""
        await self._owner.create(self, artifact)

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

    async def artifacts(self) -> ArtifactStore:
        """Open the place."""
        return WrappedRegisterStore(self, await self.subject.artifacts())

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Make an artifact."""
        await artifacts.inner.create(artifact)

    async def delete(self, artifacts: WrappedRegisterStore, name: str) -> None:
        """Unmake an artifact."""
        await artifacts.inner.delete(name)

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Read an artifact."""
        return await artifacts.inner.read(name)

    async def names(self, artifacts: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """List artifacts."""
        return await artifacts.inner.names(prefix)


class StrictArtifacts(WrappedArtifacts):
    """Complains about what is not there."""

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Demand it."""
        data = await artifacts.inner.read(name)
        if data is None:
            raise LookupError(name)
        return data

    async def delete(self, artifacts: WrappedRegisterStore, name: str) -> None:
        """Demand it."""
        await self.read(artifacts, name)
        await artifacts.inner.delete(name)


class CachingArtifacts(WrappedArtifacts):
    """Answers what it answered before."""

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Read once."""
        if name not in artifacts.known:
            artifacts.known[name] = await artifacts.inner.read(name)
        return artifacts.known[name]


class PrivateArtifacts(WrappedArtifacts):
    """Keeps artifacts in the process that made them."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Keep it."""
        artifacts.known[artifact.name] = artifact.data

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Look there."""
        return artifacts.known.get(name)


class NullArtifacts(WrappedArtifacts):
    """Takes empty data for none."""

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Mix them up."""
        return await artifacts.inner.read(name) or None


class ShortArtifacts(WrappedArtifacts):
    """Keeps the beginning of what is large."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Cut it."""
        await artifacts.inner.create(replace(artifact, data=artifact.data[:SHORT]))


class TidyingArtifacts(WrappedArtifacts):
    """Gives artifacts names that any system takes."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Change the name."""
        await artifacts.inner.create(replace(artifact, name=_tidy(artifact.name)))

    async def read(self, artifacts: WrappedRegisterStore, name: str) -> bytes | None:
        """Change the name."""
        return await artifacts.inner.read(_tidy(name))


class OnceArtifacts(WrappedArtifacts):
    """Takes the second call for somebody else's."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Look first."""
        if await artifacts.inner.read(artifact.name) is not None:
            raise CommitRefused("the name is taken")
        await artifacts.inner.create(artifact)


class NumberingArtifacts(WrappedArtifacts):
    """Makes a second artifact of the second call."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Make one more."""
        again = await artifacts.inner.read(artifact.name) is not None
        await artifacts.inner.create(replace(artifact, name=f"{artifact.name} (2)") if again else artifact)


class KeepingArtifacts(WrappedArtifacts):
    """Unmakes nothing."""

    async def delete(self, artifacts: WrappedRegisterStore, name: str) -> None:
        """Do nothing."""


class SweepingArtifacts(WrappedArtifacts):
    """Unmakes all that begins alike."""

    async def delete(self, artifacts: WrappedRegisterStore, name: str) -> None:
        """Take the name for a prefix."""
        for each in await artifacts.inner.names(name):
            await artifacts.inner.delete(each)


class BaseNameArtifacts(WrappedArtifacts):
    """Lists names without what is before the last '/'."""

    async def names(self, artifacts: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """Cut them."""
        return tuple(name.rsplit("/", 1)[-1] for name in await artifacts.inner.names(prefix))


class FolderArtifacts(WrappedArtifacts):
    """Lists whole folders."""

    async def names(self, artifacts: WrappedRegisterStore, prefix: str) -> tuple[str, ...]:
        """Take the prefix for a folder."""
        return await artifacts.inner.names(prefix.rpartition("/")[0])


class GrowingArtifacts(WrappedArtifacts):
    """Writes piece by piece, under the final name."""

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Write the half of it, then all."""
        if await artifacts.inner.read(artifact.name) == artifact.data:
            return
        await artifacts.inner.delete(artifact.name)
        await artifacts.inner.create(replace(artifact, data=artifact.data[: len(artifact.data) // 2]))
        await asyncio.sleep(0)
        await artifacts.inner.delete(artifact.name)
        await artifacts.inner.create(artifact)


class ReservingArtifacts(WrappedArtifacts):
    """Reserves a name first, and never gives back what a dead process reserved."""

    def __init__(self, inner: ArtifactStoreSubject) -> None:
        super().__init__(inner)
        self._reserved: set[str] = set()

    async def create(self, artifacts: WrappedRegisterStore, artifact: Artifact) -> None:
        """Reserve, then make."""
        if artifact.name in self._reserved:
            raise CommitFailed("the name is reserved")
        self._reserved.add(artifact.name)
        await asyncio.sleep(0)
        await artifacts.inner.create(artifact)
        self._reserved.discard(artifact.name)


def _tidy(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
