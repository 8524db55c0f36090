"""The command line under test, in a directory of its own with a small shop in it."""

import shutil
import sys
from pathlib import Path

import pytest

from onceonly.cli import operator_ports
from tests.cli.terminal import Terminal


@pytest.fixture
def onceonly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    """Return a terminal in a fresh directory, with `shop.py` in it."""
    shutil.copy(Path(__file__).with_name("shop_program.py"), tmp_path / "shop.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it is taken for current after a change within a second
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(operator_ports, "HEAD_START_SECONDS", 1.0)
    for name in ("ONCEONLY_STORE", "ONCEONLY_TRANSPORT"):
        monkeypatch.delenv(name, raising=False)
    return Terminal(tmp_path, capsys)
