"""Dead letters as JSON Lines."""

import io
import json

import pytest

from onceonly.adapters.memory.store import MemoryDeadLetters
from onceonly.adapters.memory.world import Live
from onceonly.cli.events import BadItem
from onceonly.cli.files import ImportResult, from_line, read_lines, to_line, write_lines
from onceonly.model.dead_letter import DeadLetter
from onceonly.operations.letters import PAGE, choose, pages
from onceonly.ports.dead_letters import Filter
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import EVERY_BYTE, failures, rich_message

RICH = DeadLetter(
    endpoint="shop",
    reason="gave up - π\nin two lines",
    headers=(("x-ü", "§"), ("x-ü", "")),
    body=EVERY_BYTE,
    message=rich_message(),
    attempts=8,
    history=failures(),
    finish_only=True,
    at=1_700_000_000_123,
)
NAMELESS = DeadLetter(endpoint="shop", reason="no id", headers=(), body=b"", at=5)


@pytest.mark.parametrize("letter", [RICH, NAMELESS])
def test_a_letter_comes_back_from_its_line_with_every_field(letter: DeadLetter) -> None:
    """In one line, its body in base64, with its key for whoever looks."""
    line = to_line(letter)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert from_line(line, 1) == letter
    written = json.loads(line)
    assert written["key"] == letter.key
    assert set(DeadLetter.__struct_fields__) < set(written)


async def test_what_was_exported_is_imported_exactly_and_once() -> None:
    """In the same order, with the time each was stored; what is there already stays as it is."""
    many = [DeadLetter(endpoint="shop", reason="r", headers=(), body=b"%d" % n, at=n) for n in range(1, PAGE + 2)]
    source, target = (MemoryDeadLetters(Live(), clock=ManualClock()) for _ in range(2))
    for letter in (RICH, *many, NAMELESS):
        await source.add(letter)
    file = io.BytesIO()
    assert await write_lines(pages(source, Filter()), file) == PAGE + 3
    await target.add(NAMELESS)
    tallies = ImportResult(), ImportResult()
    for tally in tallies:
        await read_lines(io.BytesIO(file.getvalue()), target, tally=tally)
    assert tallies == (ImportResult(new=PAGE + 2, known=1), ImportResult(new=0, known=PAGE + 3))
    assert await choose(target, Filter(), limit=1000) == [NAMELESS, RICH, *many]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"nonsense", "line 3 is not a dead letter: "),
        (b"\xff", "line 3 is not a dead letter: "),
        (to_line(RICH)[:-20], "line 3 is not a dead letter: "),
        (b'{"endpoint": "shop"}', "missing required field `reason`"),
        (to_line(NAMELESS).replace(b'"body":""', b'"body":"?"'), "base64"),
        (to_line(NAMELESS).replace(b'"attempts":0', b'"attempts":%d' % 10**30), "line 3 is not a dead letter: "),
        (to_line(NAMELESS).replace(b'"endpoint":"shop"', b'"endpoint":""'), "'' is not an endpoint name"),
        (to_line(NAMELESS).replace(b'"body":""', b'"body":"AAAA"'), "line 3 does not match its key"),
        (
            to_line(NAMELESS).replace(b'"format":1', b'"format":2'),
            "line 3 has format 2, this version reads format 1: upgrade onceonly",
        ),
    ],
)
async def test_a_bad_line_is_named_and_those_before_it_are_imported(line: bytes, complaint: str) -> None:
    """Empty lines count as lines, and mean nothing."""
    letters, tally = MemoryDeadLetters(Live(), clock=ManualClock()), ImportResult()
    with pytest.raises(BadItem) as caught:
        await read_lines([to_line(RICH), b"\n", line, to_line(NAMELESS)], letters, tally=tally)
    assert complaint in str(caught.value)
    assert tally == ImportResult(new=1, known=0)
    assert await choose(letters, Filter(), limit=1000) == [RICH]


def test_a_line_without_a_key_is_a_letter_of_its_own() -> None:
    """So a person may change one and mean it."""
    fields = json.loads(to_line(NAMELESS)) | {"body": "AAAA"}
    del fields["key"]
    assert from_line(json.dumps(fields).encode(), 1).body == b"\0\0\0"
