"""A command that runs with another release of a server."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers import releases, with_release
from tests.servers.available import POSTGRESQL, gone
from tests.servers.releases import NewServer
from tests.servers.with_release import main

SEES = "import os, sys; sys.exit(7 if os.environ.get('ONCEONLY_POSTGRESQL') == 'postgresql://new' else 8)"
COMMAND = ("NEW", sys.executable, "-c", SEES)


@contextmanager
def address(_: Path) -> Iterator[str]:
    """Give the URL of a server."""
    yield "postgresql://new"


def absent(_: Path) -> Mapping[str, str]:
    """Have no release."""
    raise gone(POSTGRESQL._replace(name="New"), "New cannot be had")


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def version(_: str) -> str:
        return "99.1"

    monkeypatch.setattr(with_release, "version_of", version)
    monkeypatch.setattr("tests.servers.available.MISSING", set())
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv(POSTGRESQL.variable, "postgresql://old")
    monkeypatch.setattr("signal.signal", lambda *_: None)


def test_the_command_has_the_server_and_its_exit_code_is_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """And the version is what the server says."""
    monkeypatch.setattr(releases, "NEW", NewServer(POSTGRESQL, "99", lambda _: {}, address), raising=False)
    assert main(*COMMAND) == 7
    assert capfd.readouterr().err == "with PostgreSQL 99.1\n"
    assert os.environ[POSTGRESQL.variable] == "postgresql://old"


def test_without_the_release_it_says_so(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """It runs with the server of this machine, and with CI=true not at all."""
    monkeypatch.setattr(releases, "NEW", NewServer(POSTGRESQL, "99", absent, address), raising=False)
    assert main(*COMMAND) == 8
    assert capfd.readouterr().err == "!!! NOT TESTED: New cannot be had\n"
    monkeypatch.setenv("CI", "true")
    assert main(*COMMAND) == 1
    assert capfd.readouterr().err == "New cannot be had\n"
