"""Artifacts in a folder, beyond the contract of the port: what stays inside, what a crash leaves, what goes wrong."""

import asyncio
import threading
from pathlib import Path

import pytest

from onceonly.adapters.folder.artifacts import FolderArtifacts
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly_conformance.artifact_suite import artifact
from onceonly_conformance.suite import steps

ESCAPES = (
    "",
    ".",
    "..",
    "../a",
    "a/../../b",
    "a/..",
    "/etc/a",
    "//a",
    "a//b",
    "a/",
    "./a",
    "a\\b",
    "..\\a",
    "c:a",
    "a\0b",
    ".making/a",
    ".making",
    "x" * 256,
    "a\ud800",
)


@pytest.fixture(name="folder")
def folder_beside_another(tmp_path: Path) -> Path:
    """Make a folder that is not alone."""
    (tmp_path / "inside").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a").write_bytes(b"secret")
    return tmp_path / "inside"


def everything(folder: Path) -> list[str]:
    """List files and folders."""
    return sorted(found.relative_to(folder).as_posix() for found in folder.rglob("*"))


@pytest.mark.parametrize("name", ESCAPES)
async def test_a_name_that_is_none_is_refused(folder: Path, name: str) -> None:
    """It is never made, so it is never there, and unmaking it is harmless; nothing outside is touched."""
    artifacts, before = FolderArtifacts(folder), everything(folder.parent)
    with pytest.raises(CommitRefused, match="not a file name"):
        await artifacts.create(artifact(name))
    assert await artifacts.read(name) is None
    await artifacts.delete(name)
    assert everything(folder.parent) == before


async def test_a_link_that_leads_out_is_not_followed(folder: Path) -> None:
    """Neither to write, nor to read, nor to remove."""
    (folder / "link").symlink_to(folder.parent / "outside")
    artifacts = FolderArtifacts(folder)
    with pytest.raises(CommitRefused):
        await artifacts.create(artifact("link/b"))
    assert await artifacts.read("link/a") is None
    await artifacts.delete("link/a")
    assert everything(folder.parent / "outside") == ["a"]


async def test_a_name_that_the_system_does_not_take_is_refused(folder: Path) -> None:
    """A path that is too long, a file below a file, a file where a folder is: for ever, so it is not tried again."""
    artifacts = FolderArtifacts(folder)
    await artifacts.create(artifact("a/b"))
    for name in ("/".join(["x" * 250] * 20), "a/b/c", "a"):
        with pytest.raises(CommitRefused, match="rejected the name"):
            await artifacts.create(artifact(name))
        assert await artifacts.read(name) is None
        await artifacts.delete(name)
    assert everything(folder) == [".making", "a", "a/b"]


async def test_a_name_with_other_data_is_refused(folder: Path) -> None:
    """A name belongs to one attempt; the first data stays."""
    artifacts = FolderArtifacts(folder)
    await artifacts.create(artifact("a", b"first"))
    with pytest.raises(CommitRefused, match="other data"):
        await artifacts.create(artifact("a", b"second"))
    assert await artifacts.read("a") == b"first"


async def test_what_a_dead_process_was_writing_goes_with_the_thing(folder: Path) -> None:
    """Whoever cleans up knows the name only."""
    artifacts = FolderArtifacts(folder)
    left = artifacts._write(artifact("invoices/a"))
    artifacts._write(artifact("invoices/b"))
    assert await artifacts.names() == ()
    await artifacts.delete("invoices/a")
    assert not left.exists()
    assert len(everything(folder / ".making")) == 1


async def test_empty_folders_do_not_stay(folder: Path) -> None:
    """Those that are not empty do."""
    artifacts = FolderArtifacts(folder)
    for name in ("a/b/c/1", "a/2"):
        await artifacts.create(artifact(name))
    await artifacts.delete("a/b/c/1")
    assert everything(folder) == [".making", "a", "a/2"]
    await artifacts.delete("a/2")
    assert everything(folder) == [".making"]


class Vanishing(FolderArtifacts):
    """In a folder that others tidy up as well: what was just made, and is empty, is gone a few times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__(folder)
        self.times = times

    def _make_folder(self, folder: Path) -> None:
        super()._make_folder(folder)
        if self.times:
            self.times -= 1
            folder.rmdir()


async def test_a_folder_that_vanishes_is_made_again(folder: Path) -> None:
    """Removing another thing may take the empty folder away just then."""
    artifacts = Vanishing(folder, 9)
    await artifacts.create(artifact("a/b"))
    assert await artifacts.names() == ("a/b",)


async def test_a_folder_that_vanishes_again_and_again_is_unknown(folder: Path) -> None:
    """It ends some time, and leaves nothing."""
    with pytest.raises(OutcomeUnknown, match="it is unknown whether"):
        await Vanishing(folder, 10).create(artifact("a/b"))
    assert everything(folder) == [".making"]


async def test_a_folder_that_is_not_there_is_an_error_for_every_call(folder: Path) -> None:
    """It may only not be mounted: then nothing is made below, and nothing is said to be gone."""
    artifacts = FolderArtifacts(folder / "mounted")
    for call in (artifacts.create(artifact("a")), artifacts.delete("a"), artifacts.read("a"), artifacts.names()):
        with pytest.raises(CommitFailed, match="mount"):
            await call
    assert everything(folder) == []


async def test_what_cannot_be_written_failed(folder: Path) -> None:
    """Definite: nobody sees anything of it."""
    (folder / ".making").write_bytes(b"in the way")
    with pytest.raises(CommitFailed, match="cannot write"):
        await FolderArtifacts(folder).create(artifact("a"))
    assert await FolderArtifacts(folder).names() == (".making",)


class Hesitant(FolderArtifacts):
    """Waits, with the data written and no name given yet."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.waits, self.may_go_on = threading.Event(), threading.Event()

    def _write(self, artifact: Artifact) -> Path:
        making = super()._write(artifact)
        self.waits.set()
        self.may_go_on.wait(30)
        return making


async def test_a_cancelled_call_ends_when_its_thread_has(folder: Path) -> None:
    """So whatever it still makes is there before whoever cancelled it cleans up."""
    artifacts = Hesitant(folder)
    making = asyncio.create_task(artifacts.create(artifact("a")))
    await asyncio.to_thread(artifacts.waits.wait, 30)
    making.cancel()
    await steps(20)
    assert not making.done()
    artifacts.may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert await artifacts.names() == ("a",)
    await artifacts.delete("a")
    assert await artifacts.names() == ()


class Synced(FolderArtifacts):
    """Tells what is synced to the disk, and what is there at that moment."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.told: list[str] = []

    def _sync(self, folder: Path) -> None:
        self.told.append(folder.name)
        super()._sync(folder)


async def test_every_folder_on_the_way_is_synced(folder: Path) -> None:
    """A new name is in the folder above it, and so is that folder's."""
    artifacts = Synced(folder)
    await artifacts.create(artifact("a/b/1"))
    assert artifacts.told == ["b", "a", "inside"]
    artifacts.told.clear()
    await artifacts.delete("a/b/1")
    assert artifacts.told == ["inside"]


class Unsyncable(FolderArtifacts):
    """On a disk that does not say whether it kept what it was told to keep."""

    def _sync(self, folder: Path) -> None:
        raise OSError(5, "Input/output error")


async def test_what_may_not_be_on_the_disk_is_unknown(folder: Path) -> None:
    """It is there now, and may be gone after a power cut."""
    artifacts = Unsyncable(folder)
    with pytest.raises(OutcomeUnknown, match="power failure"):
        await artifacts.create(artifact("a"))
    assert await artifacts.read("a") is not None
    with pytest.raises(OutcomeUnknown, match="power failure"):
        await artifacts.delete("a")
