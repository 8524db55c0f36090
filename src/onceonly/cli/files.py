"""Files that commands read and write; - is standard input or output."""

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from onceonly.model.errors import SetupError


@contextmanager
def reading(file: str) -> Iterator[BinaryIO]:
    """Open a file, a pipe (a shell's `<(...)` among them) or standard input. Raises SetupError when there is none."""
    if file == "-":
        yield sys.stdin.buffer
        return
    if not Path(file).exists() or Path(file).is_dir():
        problem = "is a directory" if Path(file).is_dir() else "does not exist"
        raise SetupError(f"file {file} {problem}: name an existing file, or - for standard input")
    with Path(file).open("rb") as stream:
        yield stream


@contextmanager
def writing(file: str) -> Iterator[BinaryIO]:
    """Make a new file that only its owner can read, or use standard output.

    A file is on the disk at the end, or, when anything went wrong, not there.

    Raises SetupError when there is one already: it may be all that is left of what it holds.
    """
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        stream = open(file, "xb", opener=_private)  # noqa: SIM115 - closed below; only a failure to make it is caught here
    except FileExistsError as error:
        raise SetupError(f"file {file} already exists and is not overwritten: name a new file") from error
    with stream:
        try:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        except BaseException:
            Path(file).unlink()
            raise


def interruptible(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Give these lines, so that Ctrl-C ends the wait for the next one.

    While an event loop runs, Ctrl-C cancels its task; a task that waits in a read is not at a place where it could end. Signals
    belong to the main thread: in another one, this changes nothing.
    """
    source = iter(lines)
    if threading.current_thread() is not threading.main_thread():
        yield from source
        return
    while True:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = next(source, None)
        finally:
            signal.signal(signal.SIGINT, before)
        if line is None:
            return
        yield line


def _private(path: str, flags: int) -> int:
    """Create a file for its owner alone: it holds the bodies of messages."""
    return os.open(path, flags, 0o600)
