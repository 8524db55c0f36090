"""The tutorial of Celery, word for word: its files are written, its commands run, and what it promises is what they print."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.soak.sampling import broker_of_run
from tests import ROOT
from tests.docs.test_tutorial import Reader
from tests.servers.available import RABBITMQ, need

PAGE = ROOT / "docs" / "tutorial" / "celery.md"


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_reader_of_the_tutorial_sees_what_it_promises(tmp_path: Path) -> None:
    """On a virtual host of its own, because the tutorial's queue has a fixed name."""
    async with broker_of_run(need(RABBITMQ), f"tutorial-{uuid4().hex[:8]}") as broker:
        await asyncio.to_thread(Reader(tmp_path, {"TUTORIAL_BROKER": broker.url}).follow, PAGE)
