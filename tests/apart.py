"""Distributions that are not in the environment of the tests: each in a folder of its own, without what it depends on."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.available import Server, gone, want

_SECONDS = 300


def folder_with(requirement: str, name: str, *, above: Path | None = None, variable: str = "") -> Path:
    """Return the folder called `name` with a distribution, `name==version`, which is installed if it is not there yet.

    The folder is in the environment of the tests, or in `above`. Skips the test, or fails it with CI=true, where it cannot be
    installed; `variable` is what the reason points at.
    """
    want(requirement)
    place = above or Path(sys.prefix)
    folder = place / name
    if not folder.is_dir():
        try:
            _install(requirement, place, folder)
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or error
            hint = f", see {variable}" if variable else ""
            reason = f"{requirement} cannot be installed into {folder}{hint}: {told}"
            raise gone(Server(requirement, variable, ""), reason) from error
    return folder


def _install(requirement: str, above: Path, folder: Path) -> None:
    """Install into a new folder and rename it, so that nobody finds half of it."""
    with TemporaryDirectory(dir=above, prefix="installing-") as name:
        whole = Path(name, "whole")
        options = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--target", str(whole))
        command = [sys.executable, "-m", "pip", "install", *options, requirement]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
        try:
            whole.rename(folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
