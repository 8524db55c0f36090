"""The demo on the stand-in, which runs as a process of its own: real processes, real kills."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from examples.shop_demo.rabbitmq import free_port
from onceonly_demo.view import MUST_BE_ZERO

pytestmark = pytest.mark.slow

FLIGHTS, KILLS = 300, 5


@contextmanager
def running() -> Iterator[str]:
    """Run a stand-in; gives its URL."""
    port, management_port = free_port(), free_port()
    words = [sys.executable, "-m", "tests.servers.servicebus.standin", str(port), str(management_port)]
    process = subprocess.Popen(words)
    try:
        asyncio.run(_listening(port))
        yield f"servicebus://tester:secret@127.0.0.1:{port}?emulator=true&management_port={management_port}"
    finally:
        process.kill()
        process.wait()


async def _listening(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            assert time.monotonic() < until, "the stand-in does not listen"
            await asyncio.sleep(0.05)
        else:
            writer.close()
            return


def demo(url: str, *options: str) -> dict[str, float]:
    """Run the demo; gives its numbers."""
    words = [sys.executable, "-m", "onceonly", "demo", "--json", "--flights", str(FLIGHTS), "--kills", str(KILLS)]
    done = subprocess.run([*words, "--transport", url, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(320)
@pytest.mark.parametrize("options", ["", pytest.param("&sessions=true", marks=pytest.mark.repeated)])
def test_every_flight_counts_once_though_processes_are_killed(options: str) -> None:
    """All zeros, and the kills really happened."""
    with running() as url:
        numbers = demo(url + options)
    assert {name: numbers[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert (numbers["effects"], numbers["kills"]) == (FLIGHTS, KILLS)


@pytest.mark.repeated
@pytest.mark.timeout(320)
def test_without_deduplication_flights_count_twice() -> None:
    """The control run: the faults are real."""
    with running() as url:
        numbers = demo(url, "--deduplication", "off")
    assert numbers["duplicated"] > 0
    assert (numbers["lost"], numbers["kills"]) == (0, KILLS)
