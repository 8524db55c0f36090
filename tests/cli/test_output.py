"""What the command line prints."""

import pytest

from onceonly.cli.output import complain, show, show_json, show_table


def test_control_characters_of_messages_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A dead letter must not clear the screen of the person who reads it, nor be taken for markup."""
    show("a\x1b[2Jb\r[red]c")
    show_table("title", ("name", "count"), [("x\x07", 1234)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "a\\x1b[2Jb\\r[red]c" in out
    assert "1,234" in out


def test_json_and_tables_are_answers_and_complaints_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output can be piped into another program."""
    show_json({"é": [1]})
    complain("  no such thing:\n  * one\n  * two\n")
    captured = capsys.readouterr()
    assert captured.out == '{\n  "é": [\n    1\n  ]\n}\n'
    assert captured.err == "error: no such thing:\n  * one\n  * two\n"


def test_piped_lines_are_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """One row is one line, however long its reason is."""
    show_table("", ("reason",), [("word " * 100,)])
    assert len(capsys.readouterr().out.splitlines()) == 5
