"""The contract of the ArtifactStore port, rule by rule, for the kinds in the library and for those that users add."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import ClassVar, Protocol

from onceonly.model.artifact import Artifact
from onceonly.ports.effects import ArtifactStore
from onceonly_conformance.samples import EVERY_BYTE
from onceonly_conformance.store_subject import cancel
from onceonly_conformance.suite import Suite

NAME = "invoices/2026/0f3a.pdf"
NAMES = (NAME, "0f3a", "invoices/2027/0f3a.pdf", "köln № 7 δ/東京 🛫", "a b/c+d%2F=e&f#g", "%", "_", "a-b_c.d,e;f~g", "x" * 100)
LARGE = EVERY_BYTE * 4096


class ArtifactStoreSubject(Protocol):
    """One kind of artifact under test, in an empty store."""

    async def artifacts(self) -> ArtifactStore:
        """Open the store. Each call opens it as a separate process would."""


def artifact(name: str = NAME, data: bytes = EVERY_BYTE) -> Artifact:
    """Return the description of an artifact."""
    return Artifact(kind="blob", name=name, data=data, content_type="application/pdf")


class ArtifactStoreSuite(Suite):
    """The rules of an artifact store. Override `open_artifacts`. `large` is data of a size that the store must accept."""

    large: ClassVar[bytes] = LARGE

    def open_artifacts(self) -> AbstractAsyncContextManager[ArtifactStoreSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_what_was_never_made_has_no_data(self) -> None:
        """`read` returns None for a name that was not created, even if similar names exist. It raises no error."""
        async with self.open_artifacts() as subject:
            assert await _read(subject, NAME) is None
            await _make(subject, artifact("other"))
            assert (await _read(subject, NAME), await _read(subject, "othe"), await _read(subject, "other/x")) == (None,) * 3

    async def test_what_was_made_is_there_for_everybody(self) -> None:
        """Every process reads the exact data of a created artifact, also a process that read None before."""
        async with self.open_artifacts() as subject:
            reader = await subject.artifacts()
            assert await reader.read(NAME) is None
            await _make(subject, artifact())
            assert (await reader.read(NAME), await _read(subject, NAME)) == (EVERY_BYTE, EVERY_BYTE)

    async def test_data_may_be_empty(self) -> None:
        """An artifact with empty data exists. `read` returns empty bytes, not None."""
        async with self.open_artifacts() as subject:
            await _make(subject, artifact(data=b""))
            assert await _read(subject, NAME) == b""

    async def test_data_may_be_large(self) -> None:
        """The store accepts data of the size of `large`, by default one megabyte."""
        async with self.open_artifacts() as subject:
            await _make(subject, artifact(data=self.large))
            assert await _read(subject, NAME) == self.large

    async def test_names_are_exact(self) -> None:
        """Names may contain "/", spaces, punctuation and any script. Each name is a separate artifact."""
        async with self.open_artifacts() as subject:
            for name in NAMES:
                await _make(subject, artifact(name, name.encode()))
            assert [await _read(subject, name) for name in NAMES] == [name.encode() for name in NAMES]

    async def test_making_the_same_again_is_fine(self) -> None:
        """`create` may be repeated by any process, for example after a lost response."""
        async with self.open_artifacts() as subject:
            artifacts = await subject.artifacts()
            await artifacts.create(artifact())
            await artifacts.create(artifact())
            await _make(subject, artifact())
            assert (await _read(subject, NAME), await artifacts.names()) == (EVERY_BYTE, (NAME,))

    async def test_what_was_unmade_is_gone_for_everybody(self) -> None:
        """A deleted artifact is gone for every process, including those that created or read it."""
        async with self.open_artifacts() as subject:
            maker, reader = await subject.artifacts(), await subject.artifacts()
            await maker.create(artifact())
            assert await reader.read(NAME) == EVERY_BYTE
            await (await subject.artifacts()).delete(NAME)
            assert (await maker.read(NAME), await reader.read(NAME), await reader.names()) == (None, None, ())

    async def test_unmaking_what_is_not_there_is_harmless(self) -> None:
        """`delete` accepts a name that was never created, and one that is already deleted."""
        async with self.open_artifacts() as subject:
            artifacts = await subject.artifacts()
            await artifacts.delete(NAME)
            await artifacts.create(artifact())
            await artifacts.delete(NAME)
            await artifacts.delete(NAME)
            assert await _read(subject, NAME) is None

    async def test_unmaking_leaves_others(self) -> None:
        """`delete` keeps artifacts with the same prefix or in the same folder."""
        others = ("invoices/2026/0f3b.pdf", NAME + ".old", "invoices/2027/0f3a.pdf")
        async with self.open_artifacts() as subject:
            for name in (NAME, *others):
                await _make(subject, artifact(name))
            await (await subject.artifacts()).delete(NAME)
            assert [await _read(subject, name) for name in (NAME, *others)] == [None, *[EVERY_BYTE] * 3]
            assert set(await (await subject.artifacts()).names()) == set(others)

    async def test_everything_made_is_listed(self) -> None:
        """`names` returns each name once, exactly as it was given."""
        async with self.open_artifacts() as subject:
            for name in NAMES:
                await _make(subject, artifact(name, b"data"))
            assert sorted(await (await subject.artifacts()).names()) == sorted(NAMES)

    async def test_a_list_holds_what_begins_with_the_prefix(self) -> None:
        """`names` returns exactly the names that start with the prefix. The prefix may end anywhere in a name."""
        prefixes = ("invoices/", "invoices/2026/", "inv", "köln", "%", "nothing")
        async with self.open_artifacts() as subject:
            for name in NAMES:
                await _make(subject, artifact(name, b"data"))
            artifacts = await subject.artifacts()
            listed = [sorted(await artifacts.names(prefix)) for prefix in prefixes]
            assert listed == [sorted(name for name in NAMES if name.startswith(prefix)) for prefix in prefixes]

    async def test_a_thing_is_there_whole_or_not_at_all(self) -> None:
        """A read during `create` returns None or the complete data."""
        async with self.open_artifacts() as subject:
            reader = await subject.artifacts()
            making = asyncio.create_task(_make(subject, artifact(data=self.large)))
            seen = {await reader.read(NAME)}
            while not making.done():
                seen.add(await reader.read(NAME))
            await making
            assert seen | {await reader.read(NAME)} <= {None, self.large}

    async def test_a_cancelled_making_may_be_made_again(self) -> None:
        """A cancelled `create` leaves no artifact or a complete one. `create` may then be called again."""
        async with self.open_artifacts() as subject:
            for turns in range(6):
                artifacts, mine = await subject.artifacts(), artifact(f"t/{turns}")
                await cancel(artifacts.create(mine), turns)
                assert await _read(subject, mine.name) in {None, EVERY_BYTE}
                await artifacts.create(mine)
                assert await _read(subject, mine.name) == EVERY_BYTE
            assert sorted(await (await subject.artifacts()).names()) == [f"t/{turns}" for turns in range(6)]


async def _make(subject: ArtifactStoreSubject, one: Artifact) -> None:
    await (await subject.artifacts()).create(one)


async def _read(subject: ArtifactStoreSubject, name: str) -> bytes | None:
    return await (await subject.artifacts()).read(name)
