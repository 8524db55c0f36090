"""Programs that are not Python: where they are, how they are built, and what becomes them.

A worker process replaces itself with one of them, so its CPU seconds and memory are the program's own. It carries on with
the lines of `benchmarks/job.py`.
"""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

_HERE = Path(__file__).parent
_NODE_MODULES = _HERE.parents[1] / ".venv" / "bench-node" / "node_modules"
_LIMIT = "limit"

C_LIBRARIES = "cc, librabbitmq and libpq (Debian: gcc, librabbitmq-dev, libpq-dev)"
GRAPHILE_WORKER = "graphile-worker (npm)"


@cache
def is_installed(program: str) -> bool:
    """Tell whether one of the two names above can run here."""
    return _compiles() if program == C_LIBRARIES else graphile_version() is not None


def build_limit(folder: Path) -> None:
    """Compile the limit into a folder. Raises CalledProcessError with the compiler's errors, or FileNotFoundError."""
    command = ["cc", "-O2", *_includes(), "-o", str(folder / _LIMIT), str(_HERE / "limit.c"), "-lrabbitmq", "-lpq"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - nothing of a user's


def become_limit(folder: Path, *arguments: str) -> NoReturn:
    """Replace this process with the limit, which was built into this folder."""
    program = str(folder / _LIMIT)
    os.execv(program, [program, *arguments])  # noqa: S606 - no shell is wanted


def become_graphile_worker(*arguments: str) -> NoReturn:
    """Replace this process with graphile-worker's."""
    program = ["node", str(_HERE / "graphile_worker.js"), *arguments]
    os.execvpe(program[0], program, {**os.environ, "NODE_PATH": str(_NODE_MODULES)})  # noqa: S606 - the same


def make_graphile_tables(database: str) -> None:
    """Make graphile-worker's tables in a database, or upgrade them. Raises CalledProcessError."""
    command = [str(_NODE_MODULES / ".bin" / "graphile-worker"), "--connection", database, "--schema-only"]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - nothing of a user's


def graphile_version() -> str | None:
    """Return the version of graphile-worker, or None when it or Node.js is missing."""
    package = _NODE_MODULES / "graphile-worker" / "package.json"
    if shutil.which("node") is None or not package.exists():
        return None
    return str(json.loads(package.read_text(encoding="utf-8"))["version"])


def _compiles() -> bool:
    with TemporaryDirectory(prefix="onceonly-bench-") as folder:
        try:
            build_limit(Path(folder))
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def _includes() -> list[str]:
    """Ask where libpq's headers are; without `pg_config` the compiler's own folders must do."""
    if shutil.which("pg_config") is None:
        return []
    found = subprocess.run(["pg_config", "--includedir"], check=True, capture_output=True, text=True)  # noqa: S607 - as installed
    return [f"-I{found.stdout.strip()}"]
