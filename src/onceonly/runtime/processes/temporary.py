"""Temporary directories. A container with a read-only file system may have none that can be written."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from onceonly.model.errors import SetupError


@contextmanager
def temporary_directory(prefix: str, use: str) -> Iterator[str]:
    """Make a directory for what `use` names, and remove it at the end. Raises SetupError with what to mount."""
    try:
        directory = tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        tried = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the name is for a person
        raise SetupError(
            f"no writable temporary directory for {use}: tried {tried} ({error.strerror or error}). Mount a writable"
            f" directory of a few megabytes at {tried}, such as a tmpfs or an emptyDir, or set TMPDIR to one"
        ) from error
    with directory as name:
        yield name
