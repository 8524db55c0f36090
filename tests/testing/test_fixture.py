"""The pytest plugin, in a project of its own: plain pytest and pytest-asyncio, in strict mode, no configuration."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testing.crash_points import UNREACHED

USERS_TEST = """
from dataclasses import dataclass

import pytest
from onceonly import Context, Endpoint

@dataclass
class Ping:
    n: int

echo = Endpoint("echo", store="sqlite:///echo.db", transport="sqlite:///echo.db")

@echo.handler
async def answer(ping: Ping, context: Context) -> None:
    context.publish(Ping(ping.n + 1), type="pong")

@pytest.mark.asyncio
async def test_once(onceonly_run, onceonly_crash_point):
    async with onceonly_run(echo) as t:
        await t.deliver(Ping(1), copies=2, crash_at=onceonly_crash_point)
        assert [sent.read(Ping) for sent in t.sent] == [Ping(2)]

@pytest.mark.asyncio
async def test_two_runs_are_apart(onceonly_run, tmp_path):
    async with onceonly_run(echo) as one, onceonly_run(echo) as other:
        await one.deliver(Ping(1))
        assert other.sent == []
    assert len(list(tmp_path.glob("onceonly-*/store.db"))) == 2
"""


@pytest.mark.slow
def test_the_fixtures_work_in_a_project_of_its_own(tmp_path: Path) -> None:
    """A test over all crash points is one argument. Points that it does not reach are skipped. Databases stay there."""
    (tmp_path / "test_echo.py").write_text(USERS_TEST)
    options = ["-q", "-rs", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function"]
    options += ["--rootdir", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 passed, 6 skipped" in done.stdout
    assert set(re.findall(r"crash point (\S+) was not reached", done.stdout)) == UNREACHED


def test_the_plugin_imports_nothing_heavy() -> None:
    """Every pytest run of every project that has onceonly installed pays for these imports."""
    program = (
        "import sys, onceonly.testing.fixture; "
        "print(sorted({'sqlalchemy', 'aiosqlite', 'typer', 'rich', 'pydantic', 'onceonly.testing.runs'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
