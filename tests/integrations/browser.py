"""The shop of the examples as a program of its own, and a browser to look at it with; a loud skip where there is none."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests import ROOT
from tests.servers.available import free_port
from tests.servers.debian import CHROMIUM, program


class Shop:
    """The program, started and killed at will."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it and wait until it answers."""
        environment = {**os.environ, **self._settings, "SHOP_PORT": str(self.port), "SHOP_PACE": "0.1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self._process = process = self._begin(environment)
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                await writer.wait_closed()
                return
            assert process.poll() is None, (self._folder / "output").read_text()

    def _begin(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "examples.shop"]
        with (self._folder / "output").open("ab") as output:
            return subprocess.Popen(command, cwd=self._folder, env=environment, stdout=output, stderr=output)

    def close(self) -> None:
        """Ask it to stop, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def kill(self) -> None:
        """Kill it, at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@asynccontextmanager
async def started_shop(folder: Path) -> AsyncIterator[Shop]:
    """Start the example in a folder, and kill it at the end."""
    shop = Shop(folder)
    await shop.start()
    try:
        yield shop
    finally:
        shop.kill()


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    """Open the system's Chromium, without a window."""
    path = await asyncio.to_thread(program, CHROMIUM)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()
