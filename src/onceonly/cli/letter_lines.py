"""Dead letters as JSON Lines: every field, bodies in base64, one letter for each line."""

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from onceonly.cli.events import BadItem
from onceonly.config.deduplication import is_endpoint_name
from onceonly.formats.escaping import escape_json
from onceonly.formats.records import encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.ports.dead_letters import DeadLetters

FORMAT = 1


class ImportResult(Struct):
    """What came of importing: how many letters are new, and how many were there already and stayed as they were."""

    new: int = 0
    known: int = 0


class _Head(Struct, frozen=True):
    """What a line says about itself; a line without it is read all the same."""

    format: int = FORMAT
    key: str = ""


_encode = msgspec.json.Encoder().encode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_letter = msgspec.json.Decoder(DeadLetter).decode


def to_line(letter: DeadLetter) -> bytes:
    """Give the line of one letter, with its end."""
    head = _encode(_Head(format=FORMAT, key=letter.key))
    return head[:-1] + b"," + escape_json(_encode(letter)[1:].decode()).encode() + b"\n"


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
    """Write the letters, one to a line; gives how many there were."""
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

    Raises BadItem at the first line that is no letter, when all before it are added; CommitFailed, OutcomeUnknown.
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
