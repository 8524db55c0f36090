"""Temporary directories: removed at the end, and an error that says what to mount where there can be none."""

import tempfile
from pathlib import Path

import pytest

from onceonly.model.errors import SetupError
from onceonly.runtime.environment import temporary_directory


def test_it_is_removed_at_the_end() -> None:
    """With what is in it."""
    with temporary_directory("onceonly-", "a test") as name:
        (Path(name) / "file").touch()
    assert not Path(name).exists()


@pytest.mark.parametrize("place", ["missing", "file"])
def test_no_writable_directory_says_what_to_mount(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str) -> None:
    """A container with a read-only file system has none, unless one is mounted."""
    (tmp_path / "file").touch()
    wrong = str(tmp_path / place)
    monkeypatch.setenv("TMPDIR", wrong)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [wrong])
    monkeypatch.setattr(tempfile, "tempdir", None)
    with (
        pytest.raises(SetupError, match=rf"for a test: tried {wrong} .*Mount a writable.*or set TMPDIR"),
        temporary_directory("onceonly-", "a test"),
    ):
        pytest.fail("no directory was made")


def test_what_fails_inside_is_not_the_directory() -> None:
    """An error of the work passes."""
    with pytest.raises(FileNotFoundError, match="of the work"), temporary_directory("onceonly-", "a test"):
        raise FileNotFoundError("of the work")
