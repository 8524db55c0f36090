"""Artifacts as files in a local folder: each is there whole, and on disk, or it is not there."""

import errno
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, SetupError
from onceonly.systems.threads import in_thread

_MAKING = ".making"
_NEVER = {errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.ENOTEMPTY}
"""What the system says of names that it will never take, however often they are tried."""
_TRIES = 10
_LONGEST = 255
"""Bytes of one part of a name, on every file system in use."""


class FolderArtifacts:
    """Files in a folder that exists already. Names may contain '/'; the folders in between come and go with their files.

    A name cannot be that of a file and of a folder at once, and `.making` at the top is where files are written before they
    get their name. Whether names that differ in case are two is the file system's to say.
    """

    def __init__(self, folder: Path | str) -> None:
        """Use this folder; a call while it is not there (nothing mounted, for instance) raises CommitFailed."""
        self._folder = Path(folder)

    async def create(self, artifact: Artifact) -> None:
        """Make a file; see the port. A name that leads out of the folder or is taken by other data is refused."""
        await in_thread(self._create, artifact)

    async def delete(self, name: str) -> None:
        """Remove a file, and what is left of attempts to make it; see the port."""
        await in_thread(self._delete, name)

    async def read(self, name: str) -> bytes | None:
        return await in_thread(self._read, name)

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        return await in_thread(self._names, prefix)

    async def check(self) -> tuple[str, ...]:
        """Check that the folder exists. Raises SetupError."""
        if not self._folder.is_dir():
            raise SetupError(
                f"folder {self._folder} does not exist: mount it, or create it with `onceonly schema create module:endpoint`"
            )
        return ()

    def _create(self, artifact: Artifact) -> None:
        path = self._path(artifact.name)
        if path is None:
            raise CommitRefused(f"{artifact.name!r} is not a file name inside the folder: use parts separated by single '/'")
        known = self._read(artifact.name)
        if known is not None and known != artifact.data:
            raise CommitRefused(f"{artifact.name!r} was created before with other data")
        making = self._write(artifact)
        try:
            # Crash here: 1 the data is on disk, 2 it is invisible, 3 `delete` finds it by the hash of its name.
            self._name(making, path)
        except OSError as error:
            with suppress(OSError):
                making.unlink(missing_ok=True)
            if error.errno in _NEVER:
                raise CommitRefused(f"the file system rejected the name {artifact.name!r}: {error}") from error
            raise OutcomeUnknown(f"it is unknown whether {artifact.name!r} was renamed: {error}") from error
        self._sync_up(path.parent)

    def _name(self, making: Path, path: Path) -> None:
        for left in reversed(range(_TRIES)):
            try:
                self._make_folder(path.parent)
                making.replace(path)
            except FileNotFoundError:  # the removal of another file took the empty folder away in between
                if not left:
                    raise
            else:
                return

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    def _write(self, artifact: Artifact) -> Path:
        folder = self._root() / _MAKING
        making = folder / f"{_hash(artifact.name)}-{secrets.token_hex(8)}"
        try:
            folder.mkdir(exist_ok=True)
            with making.open("xb") as file:
                file.write(artifact.data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                making.unlink(missing_ok=True)
            raise CommitFailed(f"cannot write {artifact.name!r}: {error}") from error
        return making

    def _delete(self, name: str) -> None:
        path, root = self._path(name), self._root()
        if path is None:
            return
        try:
            for left in (root / _MAKING).glob(f"{_hash(name)}-*"):
                left.unlink(missing_ok=True)
            _unlink(path)
            self._prune(path.parent)
        except OSError as error:
            if error.errno not in _NEVER:
                raise OutcomeUnknown(f"it is unknown whether {name!r} was deleted: {error}") from error

    def _read(self, name: str) -> bytes | None:
        path = self._path(name)
        self._root()
        try:
            return path.read_bytes() if path else None
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in _NEVER:
                return None
            raise CommitFailed(f"cannot read {name!r}: {error}") from error

    def _names(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self._walk() if name.startswith(prefix)))

    def _walk(self) -> Iterator[str]:
        root = self._root()
        for folder, folders, files in os.walk(root):
            if Path(folder) == root and _MAKING in folders:
                folders.remove(_MAKING)
            yield from ((Path(folder) / file).relative_to(root).as_posix() for file in files)

    def _root(self) -> Path:
        if not self._folder.is_dir():
            raise CommitFailed(f"folder {str(self._folder)!r} does not exist: create or mount it")
        return self._folder

    def _path(self, name: str) -> Path | None:
        parts = name.split("/")
        if parts[0] == _MAKING or not all(map(_is_part, parts)):
            return None
        path = self._folder.joinpath(*parts)
        inside = path.parent.resolve().is_relative_to(self._folder.resolve())  # a link may lead out as well
        return path if inside else None

    def _sync_up(self, folder: Path) -> None:
        # A new folder's entry is in the folder above it, so all of them are synced up to the top.
        try:
            while folder != self._folder:
                with suppress(FileNotFoundError):  # another process has emptied and removed it
                    self._sync(folder)
                folder = folder.parent
            self._sync(folder)
        except OSError as error:
            raise OutcomeUnknown(
                f"cannot flush {str(folder)!r} to disk, so a power failure may lose its files: {error}"
            ) from error

    def _sync(self, folder: Path) -> None:
        if os.name == "nt":
            return  # Windows opens no folders; its file systems keep names in a journal
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _prune(self, folder: Path) -> None:
        while folder != self._folder:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass  # gone already: the one above it may be empty as well
            except OSError:
                break
            folder = folder.parent
        self._sync_up(folder)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except PermissionError:  # what some systems say of a folder: then there is no file of this name
        if not path.is_dir():
            raise


def _is_part(part: str) -> bool:
    try:
        size = len(part.encode())
    except UnicodeEncodeError:
        return False
    return part not in {"", ".", ".."} and not set(part) & {"\\", ":", "\0"} and size <= _LONGEST


def _hash(name: str) -> str:
    return blake2b(name.encode(), digest_size=16).hexdigest()


@asynccontextmanager
async def open_artifacts(url: str) -> AsyncIterator[FolderArtifacts]:
    """Open the folder of `folder:///var/lib/shop`. Raises SetupError."""
    yield FolderArtifacts(folder_of(url))


async def create(url: str) -> None:
    """Make the folder, and those above it, where they are missing. Raises SetupError."""
    folder_of(url).mkdir(parents=True, exist_ok=True)


def folder_of(url: str) -> Path:
    """Return the folder that a URL names. Raises SetupError for a URL with anything but a path."""
    parts = urlsplit(url)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise SetupError("a folder URL has three slashes and an absolute path: folder:///var/lib/shop")
    return Path(unquote(parts.path))
