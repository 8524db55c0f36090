"""Watching source files."""

import asyncio
import os
from pathlib import Path

from onceonly.cli.supervision import changed, stamps, until_changed


def test_a_changed_a_new_and_a_removed_file_are_seen(tmp_path: Path) -> None:
    """Every difference counts."""
    for name in ("same.py", "edited.py", "gone.py"):
        (tmp_path / name).write_text("")
    before = stamps(tmp_path)
    os.utime(tmp_path / "edited.py", ns=(1, 1))
    (tmp_path / "gone.py").unlink()
    (tmp_path / "new.py").write_text("")
    assert [path.name for path in changed(before, stamps(tmp_path))] == ["edited.py", "gone.py", "new.py"]


def test_virtual_environments_hidden_folders_and_other_files_are_not_watched(tmp_path: Path) -> None:
    """Only the program itself is looked at, however many packages lie beside it."""
    for folder in ("venv", ".git", "__pycache__", "app"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "notes.txt").write_text("")
    assert [path.relative_to(tmp_path) for path in stamps(tmp_path)] == [Path("app/code.py")]


async def test_waiting_ends_with_the_first_change(tmp_path: Path) -> None:
    """It gives the files to blame."""
    (tmp_path / "shop.py").write_text("")
    waiting = asyncio.ensure_future(until_changed(tmp_path, pause=0.01))
    stamp = 1
    while not waiting.done():  # whenever the first look was taken, one of these comes after it
        os.utime(tmp_path / "shop.py", ns=(stamp, stamp))
        stamp += 1
        await asyncio.wait([waiting], timeout=0.01)
    assert waiting.result() == [tmp_path / "shop.py"]
