"""Looking again and again: each look is shown, and one that fails ends nothing unless a person has to change something."""

import json
from collections.abc import Iterator

import pytest
from rich.console import RenderableType

from onceonly.cli.status import watch_as_json, watch_on_screen
from onceonly.model.errors import CommitFailed, SetupError


class Looks:
    """Gives or raises one thing after the other."""

    def __init__(self, *found: int | Exception) -> None:
        self._found: Iterator[int | Exception] = iter(found)

    async def __call__(self) -> dict[str, int]:
        """Return the next one, or raise it."""
        found = next(self._found)
        if isinstance(found, Exception):
            raise found
        return {"waiting": found}


async def test_each_look_is_a_line_and_one_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """The next one is looked at all the same."""
    await watch_as_json(Looks(1, CommitFailed("the place is away"), 3), 0, looks=3)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"waiting": 1},
        {"error": "the place is away (CommitFailed)"},
        {"waiting": 3},
    ]


async def test_people_keep_seeing_what_was_there_when_a_look_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """With the error below it."""

    def draw(seen: dict[str, int]) -> list[RenderableType]:
        return [f"waiting: {seen['waiting']}"]

    await watch_on_screen(Looks(7, CommitFailed("the \x1b[2Jplace is away")), draw, 0, looks=2)
    out = capsys.readouterr().out
    assert out.count("waiting: 7") == 2
    assert "error: the \\x1b[2Jplace is away" in out


async def test_a_wrong_set_up_ends_it() -> None:
    """Looking again would not help."""
    with pytest.raises(SetupError, match="no such database"):
        await watch_as_json(Looks(SetupError("no such database")), 0, looks=5)
