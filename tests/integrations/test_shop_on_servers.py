"""The shop on PostgreSQL and RabbitMQ, by two variables and the commands of its page."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.engine import make_url

from examples.shop.orders import shop
from onceonly.assembly import temporary_transport
from tests.integrations.browser import ROOT, Shop
from tests.servers.available import RABBITMQ, need, postgresql_database

PAGE = (ROOT / "examples" / "shop" / "README.md").read_text(encoding="utf-8")
ORDER = {"item": "tea", "quantity": 2}


@asynccontextmanager
async def on_servers(**settings: str) -> AsyncIterator[dict[str, str]]:
    """Make a database and a place in RabbitMQ; gives the shop's settings, and removes both."""
    queue = f"{need(RABBITMQ)}?prefix=shop{uuid4().hex[:8]}."
    database = postgresql_database()
    url = await asyncio.to_thread(database.__enter__)
    try:
        store = make_url(url).set(drivername="postgresql+asyncpg").render_as_string(hide_password=False)
        async with temporary_transport(queue, [shop.topology()]):
            yield {"SHOP_STORE": store, "SHOP_TRANSPORT": queue, **settings}
    finally:
        await asyncio.to_thread(database.__exit__, None, None, None)


def run(folder: Path, command: str, settings: dict[str, str]) -> None:
    """Run one of the page's commands."""
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    words = command.replace("onceonly ", "python -m onceonly ", 1) if command.startswith("onceonly") else command
    done = subprocess.run(
        [sys.executable, *words.split()[1:]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["beside", "apart"])
async def test_an_order_is_shipped_on_servers(tmp_path: Path, worker: str) -> None:
    """Repeated requests are one order there as well; handlers run beside them, or in a process of their own."""
    before = re.findall(r"\$ ((?:onceonly schema|python -m examples\.shop\.tables).*)", PAGE)
    assert len(before) == 2
    async with on_servers(SHOP_WORKER=worker) as settings:
        for command in before:
            await asyncio.to_thread(run, tmp_path, command, settings)
        apart = Worker(tmp_path, settings) if worker == "apart" else None
        with closing(Shop(tmp_path, settings)) as program:
            await program.start()
            async with httpx.AsyncClient(base_url=program.url) as client:
                headers = {"Idempotency-Key": '"k"'}
                answers = [await client.post("/orders", json=ORDER, headers=headers) for _ in range(3)]
                assert {(answer.status_code, answer.content) for answer in answers} == {(201, answers[0].content)}
                while (await client.get("/orders")).json() != [{**ORDER, "id": 1, "state": "shipped"}]:
                    pass
        if apart is not None:
            apart.close()


class Worker:
    """`onceonly run`, as the page says."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        (command,) = re.findall(r"`(onceonly run .*?)`", PAGE)
        environment = {**os.environ, **settings, "SHOP_PACE": "0.1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = subprocess.Popen([sys.executable, "-m", *command.split()], cwd=folder, env=environment)

    def close(self) -> None:
        """Ask it to stop, and wait."""
        self._process.terminate()
        assert self._process.wait(60) == 0
