"""Packages that add systems: installed into a folder of their own, and used by programs in processes of their own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests import ROOT

Register = Callable[..., None]
TOY = ROOT / "tests" / "plugins" / "toy"
TOY_BROKER = ROOT / "tests" / "plugins" / "toymq"
TOY_SQL = ROOT / "tests" / "plugins" / "toysql"


def install(source: Path, target: Path) -> None:
    """Build a distribution and install it into a folder, without the network."""
    copied = target.parent / f"{source.name}-source"  # the build writes into its source
    shutil.copytree(source, copied)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--target", str(target)]
    subprocess.run([*pip, *options, str(copied)], check=True, capture_output=True, text=True, timeout=60)


class Shell:
    """Runs commands in one folder, with the packages that were installed into another one."""

    def __init__(self, folder: Path, packages: Path) -> None:
        self.folder = folder
        self.packages = packages

    def run(self, *command: str, expected: int = 0) -> str:
        """Run `python -m` with these arguments, and return what it printed. Its exit code must be the expected one."""
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.packages)},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == expected, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def onceonly(self, *arguments: str, expected: int = 0) -> str:
        """Run the command line."""
        return self.run("-m", "onceonly", *arguments, expected=expected)

    def python(self, program: str) -> str:
        """Run a program."""
        return self.run("-c", program)
