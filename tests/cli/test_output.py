"""What the command line prints."""

import json

import pytest

from onceonly.cli.output import print_error, say, show, show_json, show_table


def test_control_characters_of_messages_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A dead letter must not clear the screen of the person who reads it, nor be taken for markup."""
    show("a\x1b[2Jb\r[red]c")
    show_table("title", ("name", "count"), [("x\x07", 1234)])
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "a\\x1b[2Jb\\r[red]c" in out
    assert "1,234" in out


HOSTILE = "\x1b[2J\x7f\x9b1m\u200e\u200f\u202a\u202e\u2066\u2069\ud800"
"""ESC, DEL, a C1 control, bidirectional marks, overrides and isolates, a lone surrogate."""


def test_hostile_characters_reach_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    """Text, tables, notices and JSON escape every one of them, and the JSON is the same document."""
    show(HOSTILE)
    say(HOSTILE)
    print_error(HOSTILE)
    show_table(HOSTILE, ("name",), [(HOSTILE,)])
    shown = capsys.readouterr()
    assert not {*shown.out, *shown.err} & {*HOSTILE} - {*"[2J1m"}
    show_json({"reason": HOSTILE.replace("\ud800", ""), "emoji": "\U0001f600 ä"})
    printed = capsys.readouterr().out
    assert not {*printed} & {*HOSTILE} - {*"[2J1m"}
    assert json.loads(printed) == {"reason": HOSTILE.replace("\ud800", ""), "emoji": "\U0001f600 ä"}
    assert "\U0001f600 ä" in printed
    show_json({"reason": HOSTILE})
    assert json.loads(capsys.readouterr().out) == {"reason": HOSTILE}


def test_a_cell_of_a_table_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A message id with a line feed does not make a second row."""
    show_table("", ("id",), [("real\nforged",)])
    assert "real\\nforged" in capsys.readouterr().out


def test_json_and_tables_are_answers_and_complaints_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output can be piped into another program."""
    show_json({"é": [1]})
    print_error("  no such thing:\n  * one\n  * two\n")
    captured = capsys.readouterr()
    assert captured.out == '{\n  "é": [\n    1\n  ]\n}\n'
    assert captured.err == "error: no such thing:\n  * one\n  * two\n"


def test_piped_lines_are_never_broken(capsys: pytest.CaptureFixture[str]) -> None:
    """One row is one line, however long its reason is."""
    show_table("", ("reason",), [("word " * 100,)])
    assert len(capsys.readouterr().out.splitlines()) == 5
