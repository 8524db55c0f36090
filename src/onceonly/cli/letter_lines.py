"""Files with dead letters as JSON Lines."""

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from typing import BinaryIO

import msgspec
from msgspec import Struct

from onceonly.cli.events import BadItem
from onceonly.formats.letter_lines import FORMAT, LineHead, to_line
from onceonly.formats.records import encode_letter
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.endpoint_name import is_endpoint_name
from onceonly.ports.dead_letters import DeadLetters


class ImportResult(Struct):
    """What came of importing: how many letters are new, and how many were there already and stayed as they were."""

    new: int = 0
    known: int = 0


_decode_head = msgspec.json.Decoder(LineHead).decode
_decode_letter = msgspec.json.Decoder(DeadLetter).decode


def from_line(line: bytes, number: int) -> DeadLetter:
    """Read one letter back, the same in every field. Raises BadItem, which names the line, when it is none."""
    try:
        head = _decode_head(line)
        if head.format != FORMAT:
            raise BadItem(f"line {number} has format {head.format}, this version reads format {FORMAT}: upgrade onceonly")
        if head.redacted:
            raise BadItem(
                f"line {number} has hidden fields, as the dashboard exports them: use a file of `onceonly dead export`"
            )
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
