"""Watching source files: what `--reload` waits for."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

POLL_SECONDS = 0.5
"""Seconds between two looks."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def stamps(root: Path) -> dict[Path, int]:
    """Give every `.py` file below `root` with its time of change; hidden folders and virtual environments are left out."""
    found = {}
    for path in _python_files(root):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:  # it went away just now
            continue
    return found


def changed(before: Mapping[Path, int], after: Mapping[Path, int]) -> list[Path]:
    """List the files that are new, gone or different, in order."""
    return sorted({path for path, _ in before.items() ^ after.items()})


async def until_changed(root: Path, pause: float = POLL_SECONDS) -> list[Path]:
    """Return as soon as files below `root` differ from what they are now; gives those that do."""
    before = await asyncio.to_thread(stamps, root)
    while True:
        await asyncio.sleep(pause)
        if different := changed(before, await asyncio.to_thread(stamps, root)):
            return different


def _python_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if _is_watched(Path(folder, name))]
        yield from (Path(folder, name) for name in files if name.endswith(".py"))


def _is_watched(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / "pyvenv.cfg").exists()
