"""Interpreters of other versions of Python are found, and are what they are taken for."""

import sys
from pathlib import Path

import pytest

from tests.servers import available
from tests.versions import interpreters
from tests.versions.interpreters import DEBIAN, VARIABLE, VERSIONS, ask, interpreter_of

_OWN = "{}.{}".format(*sys.version_info)


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No interpreter is on the path, in pyenv or in Debian; what is missing is no gap of the session."""
    monkeypatch.setattr(available, "MISSING", set())
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(interpreters, "DEBIAN", {})


def write_program(path: Path, script: str) -> None:
    """Write a program that answers for an interpreter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def answer(version: str, *, free_threaded: str = "false") -> str:
    """Return the script of a program that says what it is."""
    return f"""echo '{{"version": "{version}", "free_threaded": {free_threaded}}}'"""


def test_a_program_is_asked_what_it_is(tmp_path: Path) -> None:
    """Also whether it has the global interpreter lock: without it nothing was tried."""
    found = ask(Path(sys.executable), _OWN)
    assert found is not None
    assert found.version == "{}.{}.{}".format(*sys.version_info)
    assert ask(Path(sys.executable), "3.1") is None
    for script in (answer("3.14.0", free_threaded="true"), "exit 127", "echo not JSON", answer("3.140.0")):
        write_program(tmp_path / "python", script)
        assert ask(tmp_path / "python", "3.14") is None
    assert ask(tmp_path / "nothing", "3.14") is None


def test_programs_are_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest of pyenv's, before it one on the path, and before all what the variable names; each only if it works."""
    for micro in ("3.14.9", "3.14.10"):
        write_program(tmp_path / "versions" / micro / "bin" / "python", answer(micro))
    assert interpreter_of("3.14").version == "3.14.10"
    write_program(tmp_path / "python3.14", "exit 127")
    assert interpreter_of("3.14").version == "3.14.10"
    write_program(tmp_path / "python3.14", answer("3.14.2"))
    assert interpreter_of("3.14").version == "3.14.2"
    write_program(tmp_path / "other", answer("3.13.1"))
    write_program(tmp_path / "mine", answer("3.14.1"))
    monkeypatch.setenv(VARIABLE, f"{tmp_path / 'other'}:{tmp_path / 'mine'}")
    assert interpreter_of("3.14").version == "3.14.1"
    assert interpreter_of("3.13").version == "3.13.1"


def test_a_missing_version_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loudly; with CI=true it is a failure."""
    with pytest.raises(pytest.skip.Exception, match=r"there is no Python 3\.14: set ONCEONLY_PYTHONS"):
        interpreter_of("3.14")
    assert [each.name for each in available.MISSING] == ["Python 3.14"]
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="there is no Python"):
        interpreter_of("3.14")


def test_debian_has_versions_that_are_tested() -> None:
    """A row of another version would never be used."""
    assert set(DEBIAN) < set(VERSIONS)


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_debians_interpreter_runs_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own C library, and with modules that need others of its libraries."""
    monkeypatch.undo()
    monkeypatch.setattr(interpreters, "_installed", lambda _: iter(()))
    found = interpreter_of("3.14")
    assert "debian" in found.program.parts
    script = (
        "import ctypes, lzma, sqlite3, ssl, subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)'], check=True)"
    )
    done = interpreters.subprocess.run([str(found.program), "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
