"""What `--drain` says while it waits."""

import pytest

from onceonly.cli.drain import Elsewhere
from onceonly.ports.transport import Depth


def test_what_only_others_hold_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    """However often one looks."""
    elsewhere = Elsewhere(patience=0)
    for _ in range(3):
        elsewhere.look(Depth(waiting=0, held=200, delayed=0), 0)
    assert capsys.readouterr().err == "waiting for 200 messages that another process holds\n"


def test_nothing_is_said_while_there_is_work_here_or_no_reason_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """Waiting, held by itself, unknown, empty."""
    elsewhere = Elsewhere(patience=0)
    elsewhere.look(Depth(waiting=1, held=1, delayed=0), 0)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 1)
    elsewhere.look(None, 0)
    elsewhere.look(Depth(waiting=0, held=0, delayed=3), 0)
    assert capsys.readouterr().err == ""


def test_a_short_wait_is_not_worth_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    """Work that came in between begins the time anew."""
    elsewhere = Elsewhere(patience=60)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 0)
    elsewhere.look(Depth(waiting=0, held=1, delayed=0), 0)
    assert capsys.readouterr().err == ""
