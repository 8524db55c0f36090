"""The tutorial of Django, word for word: its files are written, its commands run, and what it promises is what they print."""

import socket
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.test_tutorial import Reader

PAGE = ROOT / "docs" / "tutorial" / "django.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reader_of_the_tutorial_sees_what_it_promises(tmp_path: Path) -> None:
    """On a port of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    Reader(tmp_path, {"DJANGO_SETTINGS_MODULE": "settings", "TUTORIAL_PORT": port}).follow(PAGE)
