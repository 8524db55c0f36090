"""Programs of other releases of Debian."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import available, debian_roots
from tests.servers.debian_roots import VARIABLE, Release, inside, root_of

HELLO = Release("Hello", "sid", ("hello",))
GONE = Release("Hello", "sid", ("hello=0.0-0",))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack into a directory of this test; what it lacks is no gap of the session."""
    monkeypatch.setattr(available, "MISSING", set())
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.repeated
def test_a_program_runs_in_a_root_of_its_own(folder: Path) -> None:
    """With its own libraries; nothing stays mounted, and nothing else is left in the directory."""
    root = root_of(HELLO)
    assert (root, root_of(HELLO)) == (HELLO.folder, root)
    done = subprocess.run(inside(root, "/usr/bin/hello"), capture_output=True, text=True, check=True)
    assert done.stdout == "Hello, world!\n"
    assert sorted(each.name for each in folder.iterdir()) == [root.name, f"{root.name}.lock"]
    assert str(root) not in Path("/proc/mounts").read_text()


@pytest.mark.slow
@pytest.mark.repeated
def test_a_version_that_the_mirror_lacks_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loudly, with apt's own words; with CI=true it is a failure."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"Hello of Debian sid cannot be had:.*0\.0-0"):
        root_of(GONE)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="cannot be had"):
        root_of(GONE)
    assert [each.name for each in folder.iterdir()] == [f"{GONE.folder.name}.lock"]


def test_without_root_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is downloaded."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(debian_roots.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(debian_roots.shutil, "which", str)
    with pytest.raises(pytest.skip.Exception, match="this needs root"):
        root_of(HELLO)
    monkeypatch.setattr(debian_roots.shutil, "which", lambda _: None)
    with pytest.raises(pytest.skip.Exception, match="this needs apt-get, dpkg-deb, tar"):
        root_of(HELLO)


def test_a_folder_that_is_there_is_taken(folder: Path) -> None:
    """Without apt."""
    HELLO.folder.mkdir()
    assert root_of(HELLO) == HELLO.folder
    assert HELLO.folder.parent == GONE.folder.parent == folder
    assert HELLO.folder != GONE.folder


def test_the_commands_own_process_runs_inside(tmp_path: Path) -> None:
    """Mounts come before it, as pairs."""
    words = inside(tmp_path, "program", "-x", mounts={Path(sys.prefix): "/venv"})
    assert words[-6:] == [str(tmp_path), sys.prefix, "/venv", "--", "program", "-x"]
