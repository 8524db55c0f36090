"""Dead letters in bulk, and in files, as a person or a script handles them."""

import io
import sys

import pytest
from msgspec.structs import replace

from onceonly.cli import files
from onceonly.cli.files import to_line
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed
from onceonly.model.message import Message
from tests.cli.terminal import Terminal

COUNT = 230
LIST = ("dead", "list", "sqlite:///shop.db", "--limit", "1000", "--json")


def letter(number: int) -> DeadLetter:
    """Make a letter with a message, of one of two endpoints."""
    endpoint = "shop" if number < COUNT - 10 else "mailer"
    message = Message(id=str(number), source="cli", type="even" if number % 2 == 0 else "odd", body=b"{}")
    return DeadLetter(endpoint=endpoint, reason="boom", headers=(), body=b"\xff", message=message, at=1000 + number)


@pytest.fixture
def stored(onceonly: Terminal) -> bytes:
    """Import many letters and declare their queues; gives the file's content."""
    lines = b"".join(to_line(letter(number)) for number in range(COUNT))
    (onceonly.folder / "old.jsonl").write_bytes(lines)
    assert onceonly("dead", "import", "sqlite:///shop.db", "old.jsonl").out == f"{COUNT} imported, 0 already present\n"
    onceonly("topology", "create", "shop:shop", "shop:mailer")
    return lines


@pytest.mark.slow
def test_letters_are_retried_in_bulk_with_one_wait(onceonly: Terminal, stored: bytes) -> None:
    """By type, by endpoint, then all: each bulk waits once, however many batches it has."""
    assert stored
    to = ("sqlite:///shop.db", "--transport", "sqlite:///queue.db")
    by_endpoint = onceonly("dead", "retry", *to, "--endpoint", "mailer", "--json")
    assert (by_endpoint.code, by_endpoint.answer) == (0, {"retried": 10, "kept": []})
    by_type = onceonly("dead", "retry", *to, "--type", "odd", "--reason", "oo")
    assert (by_type.code, by_type.out, by_type.err.count("waiting")) == (0, "110 retried\n", 1)
    assert {each["type"] for each in onceonly(*LIST).answer} == {"even"}
    assert onceonly("dead", "retry", *to, "--all").out == "110 retried\n"
    assert onceonly(*LIST).answer == []
    assert onceonly.rows("queue.db", "SELECT count(*) FROM onceonly_messages") == [(COUNT,)]


def test_what_is_exported_is_what_was_imported(onceonly: Terminal, stored: bytes) -> None:
    """Byte for byte, to a file or standard output; the letters stay, and a file is never written over."""
    done = onceonly("dead", "export", "sqlite:///shop.db", "new.jsonl", "--json")
    assert (done.code, done.answer) == (0, {"exported": COUNT, "file": "new.jsonl"})
    assert (onceonly.folder / "new.jsonl").read_bytes() == stored
    piped = onceonly("dead", "export", "sqlite:///shop.db", "--endpoint", "mailer")
    assert (piped.out.encode(), piped.err) == (b"".join(stored.splitlines(keepends=True)[-10:]), "10 exported\n")
    again = onceonly("dead", "export", "shop:shop", "new.jsonl")
    assert (again.code, (onceonly.folder / "new.jsonl").read_bytes()) == (2, stored)
    assert "file new.jsonl already exists" in again.error
    assert "name a FILE" in onceonly("dead", "export", "shop:shop", "--json").error
    assert len(onceonly(*LIST).answer) == COUNT


def test_a_reason_that_is_cut_in_a_list_says_so(onceonly: Terminal) -> None:
    """What to do may stand at its end; all of it is shown with its letter."""
    lines = [to_line(replace(letter(number), reason=f"{'x' * length} end")) for number, length in ((0, 196), (1, 197))]
    (onceonly.folder / "long.jsonl").write_bytes(b"".join(lines))
    onceonly("dead", "import", "sqlite:///shop.db", "long.jsonl")
    listed = onceonly("dead", "list", "sqlite:///shop.db").out
    assert (listed.count(f"{'x' * 196} end "), listed.count(f"{'x' * 196} ... ")) == (1, 1)
    assert f"{'x' * 197} end" in onceonly("dead", "show", "sqlite:///shop.db", replace(letter(1), reason="any").key).out


def test_an_export_that_fails_leaves_no_file(onceonly: Terminal, stored: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the letters would look like all of them."""
    assert stored

    async def fail(*_: object, **__: object) -> int:
        raise CommitFailed("the database is gone")

    monkeypatch.setattr(files, "write_lines", fail)
    done = onceonly("dead", "export", "shop:shop", "new.jsonl")
    assert (done.code, done.out, (onceonly.folder / "new.jsonl").exists()) == (1, "", False)
    assert "the database is gone" in done.error


def test_a_bad_line_is_one_clear_error_and_the_rest_can_follow(onceonly: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says how many were imported; importing the corrected lines, from standard input, takes only the others."""
    lines = [to_line(letter(number)) for number in range(3)]
    (onceonly.folder / "bad.jsonl").write_bytes(b"".join([*lines[:2], b"{}\n", lines[2]]))
    done = onceonly("dead", "import", "shop:shop", "bad.jsonl")
    assert (done.code, done.out) == (1, "2 imported, 0 already present\n")
    assert "line 3 is not a dead letter: " in done.error
    assert ". 2 imported before it." in done.error
    in_json = onceonly("dead", "import", "shop:shop", "bad.jsonl", "--json")
    assert (in_json.code, in_json.answer["imported"], in_json.answer["known"]) == (1, 0, 2)
    assert in_json.answer["error"].startswith("line 3")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"".join(lines))))
    assert onceonly("dead", "import", "shop:shop", "-", "--json").answer == {"imported": 1, "known": 2, "error": None}
    missing = onceonly("dead", "import", "shop:shop", "missing.jsonl")
    assert (missing.code, "file missing.jsonl does not exist" in missing.error) == (2, True)


def test_progress_is_drawn_on_a_terminal_and_on_standard_error_only(
    onceonly: Terminal, stored: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar for each; standard output is the answer alone."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    exported = onceonly("dead", "export", "sqlite:///shop.db")
    assert (exported.out.encode(), "exporting" in exported.err, f"{COUNT}/{COUNT}" in exported.err) == (stored, True, True)
    imported = onceonly("dead", "import", "sqlite:///shop.db", "old.jsonl")
    assert (imported.out, "importing" in imported.err) == (f"0 imported, {COUNT} already present\n", True)
    retried = onceonly("dead", "retry", "shop:shop", "--type", "odd")
    assert (retried.out, "retrying" in retried.err, "110/110" in retried.err) == ("110 retried\n", True, True)
