"""The contract of a projection, rule by rule, for a place of your own such as a search index."""

import asyncio
import itertools
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.ports.projections import Projection
from onceonly_conformance.samples import EVERY_BYTE
from onceonly_conformance.store_subject import cancel
from onceonly_conformance.suite import Suite

KEY = "user:7"
KEYS = (KEY, "user:70", "User:7", "user/7", "köln № 7 δ/東京 🛫", "a b/c+d%2F=e&f#g", "%", "_", "k" * 100)
LATEST = 2**62


class ProjectionSubject(Protocol):
    """One kind of projection under test, in an empty place."""

    async def projection(self) -> Projection:
        """Open the projection. Each call opens it as a separate process would."""

    async def read(self, key: str) -> bytes | None:
        """Return what users of the place read under a key, or None. It includes every call that has returned."""


class ProjectionSuite(Suite):
    """The rules of a projection. Override `open_projection`."""

    def open_projection(self) -> AbstractAsyncContextManager[ProjectionSubject]:
        """Open an empty place for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_what_was_never_put_is_not_there(self) -> None:
        """A key that was not put has no value, even if similar keys have."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put("other", b"{}", 1)
            assert [await subject.read(key) for key in (KEY, "othe", "other/x", "Other")] == [None] * 4

    async def test_what_was_put_is_there(self) -> None:
        """The body is read exactly as it was put."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put(KEY, EVERY_BYTE, 1)
            assert await subject.read(KEY) == EVERY_BYTE

    async def test_a_body_may_be_empty(self) -> None:
        """A key with an empty body exists."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put(KEY, b"", 1)
            assert await subject.read(KEY) == b""

    async def test_keys_are_exact(self) -> None:
        """Keys may contain "/", spaces, punctuation and any script. Each key has a value of its own."""
        async with self.open_projection() as subject:
            projection = await subject.projection()
            for key in KEYS:
                await projection.put(key, key.encode(), 1)
            assert [await subject.read(key) for key in KEYS] == [key.encode() for key in KEYS]

    async def test_a_greater_version_replaces_the_body(self) -> None:
        """Versions may have gaps, and be as large as 2**62."""
        async with self.open_projection() as subject:
            for version in (1, 2, 10, 1_790_000_000_000, LATEST - 1, LATEST):
                await (await subject.projection()).put(KEY, b"%d" % version, version)
                assert await subject.read(KEY) == b"%d" % version

    async def test_a_smaller_version_changes_nothing(self) -> None:
        """An older write that comes late returns without an error. Versions are compared as numbers, not as text."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put(KEY, b"10", 10)
            for version in (9, 2, 1):
                await (await subject.projection()).put(KEY, b"%d" % version, version)
                await (await subject.projection()).delete(KEY, version)
            assert await subject.read(KEY) == b"10"

    async def test_the_same_version_changes_nothing(self) -> None:
        """A write that comes again returns without an error, and the first body stays."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put(KEY, b"first", 3)
            await (await subject.projection()).put(KEY, b"first", 3)
            await (await subject.projection()).put(KEY, b"second", 3)
            await (await subject.projection()).delete(KEY, 3)
            assert await subject.read(KEY) == b"first"

    async def test_version_zero_is_put_once(self) -> None:
        """Values whose key is made from their content have version 0."""
        async with self.open_projection() as subject:
            for body in (b"content", b"content"):
                await (await subject.projection()).put(KEY, body, 0)
            assert await subject.read(KEY) == b"content"

    async def test_what_was_deleted_is_gone(self) -> None:
        """A deletion with a greater version removes the value, and no other key."""
        async with self.open_projection() as subject:
            projection = await subject.projection()
            for key in KEYS:
                await projection.put(key, b"{}", 1)
            await projection.delete(KEY, 2)
            assert [await subject.read(key) for key in KEYS] == [None, *[b"{}"] * (len(KEYS) - 1)]

    async def test_an_older_put_does_not_bring_a_deleted_key_back(self) -> None:
        """A tombstone has the version of the deletion. The same version comes too late as well."""
        async with self.open_projection() as subject:
            await (await subject.projection()).put(KEY, b"1", 1)
            await (await subject.projection()).delete(KEY, 3)
            for version in (1, 2, 3):
                await (await subject.projection()).put(KEY, b"%d" % version, version)
            assert await subject.read(KEY) is None

    async def test_a_key_may_be_deleted_before_it_is_put(self) -> None:
        """The deletion of an unknown key leaves a tombstone: its older put may be on its way."""
        async with self.open_projection() as subject:
            await (await subject.projection()).delete(KEY, 2)
            await (await subject.projection()).put(KEY, b"1", 1)
            assert await subject.read(KEY) is None

    async def test_a_newer_put_brings_a_deleted_key_back(self) -> None:
        """A key may be used again."""
        async with self.open_projection() as subject:
            await (await subject.projection()).delete(KEY, 2)
            await (await subject.projection()).put(KEY, b"3", 3)
            assert await subject.read(KEY) == b"3"
            await (await subject.projection()).put(KEY, b"1", 1)
            assert await subject.read(KEY) == b"3"

    async def test_any_order_of_writes_ends_the_same(self) -> None:
        """The greatest version decides, whatever order the calls of several processes come in."""
        async with self.open_projection() as subject:
            keys = {order: f"order:{''.join(map(str, order))}" for order in itertools.permutations((1, 2, 3, 4))}
            projections = [await subject.projection() for _ in range(4)]
            for order, key in keys.items():
                for projection, version in zip(projections, order, strict=True):
                    await (projection.delete(key, 3) if version == 3 else projection.put(key, b"%d" % version, version))
            assert {key: await subject.read(key) for key in keys.values()} == dict.fromkeys(keys.values(), b"4")

    async def test_many_may_write_a_key_at_once(self) -> None:
        """Read, compare and write are one atomic step: of calls that overlap the greatest version stays."""
        async with self.open_projection() as subject:
            projections = [await subject.projection() for _ in range(6)]
            for turns in range(8):
                versions = [(index * 5 + turns) % 6 + 1 for index in range(6)]
                calls = zip(projections, versions, strict=True)
                await asyncio.gather(*(each.put(f"t{turns}", b"%d" % version, version) for each, version in calls))
                assert await subject.read(f"t{turns}") == b"6"

    async def test_a_cancelled_put_may_be_put_again(self) -> None:
        """A cancelled call leaves the old or the new value, and never a part of one."""
        async with self.open_projection() as subject:
            for turns in range(6):
                projection, key = await subject.projection(), f"t{turns}"
                await cancel(projection.put(key, EVERY_BYTE, 1), turns)
                assert await subject.read(key) in {None, EVERY_BYTE}
                await projection.put(key, EVERY_BYTE, 1)
                assert await subject.read(key) == EVERY_BYTE
