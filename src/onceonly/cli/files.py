"""Files that commands read and write; - is standard input or output."""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from onceonly.cli.events import BadItem
from onceonly.formats.records import encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SetupError
from onceonly.model.escaping import escape_json
from onceonly.model.limits import is_endpoint_name
from onceonly.ports.dead_letters import DeadLetters

FORMAT = 1
_encode = msgspec.json.Encoder().encode


class LineHead(Struct, frozen=True, kw_only=True):
    """What a line contains in addition to the fields of a letter. A line without it can be read as well.

    `key` is that of the letter in the store.
    """

    format: int = FORMAT
    key: str = ""


def to_line(letter: DeadLetter) -> bytes:
    """Return the line of one letter, with its end."""
    head = {"format": FORMAT, "key": letter.key}
    return _encode(head)[:-1] + b"," + escape_json(_encode(letter)[1:].decode()).encode() + b"\n"


_decode_head = msgspec.json.Decoder(LineHead).decode
_decode_letter = msgspec.json.Decoder(DeadLetter).decode


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
    """Yield these lines, so that Ctrl-C ends the wait for the next one.

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


class ImportResult(Struct):
    """What came of importing: how many letters are new, and how many were there already and stayed as they were."""

    new: int = 0
    known: int = 0


def from_line(line: bytes, number: int) -> DeadLetter:
    """Read one letter back, the same in every field. Raises BadItem, which names the line, when it is none."""
    try:
        head = _decode_head(line)
        if head.format != FORMAT:
            raise BadItem(f"line {number} has format {head.format}, this version reads format {FORMAT}: upgrade onceonly")
        letter = _decode_letter(line)
        encode_letter(letter)  # a number that JSON can hold and a store cannot
    except (msgspec.MsgspecError, UnicodeError, OverflowError, RecursionError) as error:
        raise BadItem(f"line {number} is not a dead letter: {error}") from error
    if not is_endpoint_name(letter.endpoint):
        raise BadItem(f"line {number} is not a dead letter: {letter.endpoint!r} is not an endpoint name")
    if head.key and head.key != letter.key:
        raise BadItem(f"line {number} does not match its key: its content was changed. If that is intended, remove the key")
    return letter


async def write_lines(
    found: AsyncIterable[Sequence[DeadLetter]], stream: BinaryIO, *, tick: Callable[[int], object] = int
) -> int:
    written = 0
    async for page in found:
        stream.writelines(to_line(letter) for letter in page)
        written += len(page)
        tick(len(page))
    return written


async def read_lines(
    lines: Iterable[bytes], letters: DeadLetters, *, tally: ImportResult, tick: Callable[[int], object] = int
) -> None:
    """Add the letters that are not there yet, in their order; `tally` is kept up to date, also when this raises.

    Raises BadItem at the first line that is not a dead letter, after all before it are added; CommitFailed, OutcomeUnknown.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        letter = from_line(line, number)
        if await letters.get(letter.key) is None:
            await letters.add(letter)
            tally.new += 1
        else:
            tally.known += 1
        tick(1)
