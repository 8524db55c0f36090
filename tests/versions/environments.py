"""Environments of Python beside that of the tests, each in a folder of its own below it, which are made once.

pip of the tests' own environment installs into them: an interpreter may have none. They are made again when what they are made
from has changed.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests import ROOT
from tests.servers.available import Server, gone

PACKAGES = tuple(sorted(str(each.parent.relative_to(ROOT)) for each in ROOT.glob("packages/*/pyproject.toml")))
_SECONDS = 1500


class PythonEnvironment(NamedTuple):
    """The name of an environment, the interpreter it is made with, and what pip installs into it, step by step."""

    name: str
    interpreter: Path
    steps: Sequence[Sequence[str]]

    @property
    def folder(self) -> Path:
        """Return where it is."""
        return Path(sys.prefix) / self.name

    @property
    def python(self) -> Path:
        """Return its own interpreter."""
        return self.folder / "bin" / "python"


def made(environment: PythonEnvironment) -> PythonEnvironment:
    """Make an environment if it is not there yet. Skips the test, or fails it with CI=true, if pip cannot."""
    folder, ready = environment.folder, environment.folder / "ready"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.is_file() or ready.read_text() != _digest(environment):
            ready.unlink(missing_ok=True)
            try:
                _make(environment)
            except (OSError, subprocess.SubprocessError) as error:
                told = getattr(error, "stderr", None) or error
                missing = Server(f"the environment {environment.name}", "pip's own settings", "")
                raise gone(missing, f"{missing.name} cannot be made: {told}") from error
            ready.write_text(_digest(environment))
    return environment


def editable(extras: str = "") -> list[str]:
    """Return the words with which pip installs the library and the distributions of `packages/`, as in the Makefile."""
    words = ["--editable", f".[{extras}]" if extras else "."]
    return words + [word for each in PACKAGES for word in ("--editable", each)]


def _make(environment: PythonEnvironment) -> None:
    subprocess.run(
        [str(environment.interpreter), "-m", "venv", "--clear", "--without-pip", str(environment.folder)],
        check=True, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "install"]
    quietly = ("--quiet", "--disable-pip-version-check", "--no-input", "--prefer-binary")
    for words in environment.steps:
        subprocess.run(
            [*pip, *quietly, *words],
            check=True, capture_output=True, text=True, timeout=_SECONDS, cwd=ROOT,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip


def _digest(environment: PythonEnvironment) -> str:
    """Return what changes when an environment must be made again: its steps, and the files that declare what is needed."""
    files = ["pyproject.toml", "constraints.txt", *(f"{each}/pyproject.toml" for each in PACKAGES)]
    texts = [repr(environment.steps), str(environment.interpreter), *((ROOT / each).read_text() for each in files)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
