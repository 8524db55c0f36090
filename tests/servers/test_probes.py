"""A server that accepts connections and says nothing is found at once; where nothing may be missing the run ends."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests import ROOT
from tests.servers import probes
from tests.servers.available import SERVERS, Server, need

TESTS = ROOT / "tests"
PLACES = {
    "amqp": "guest:guest@127.0.0.1:{}/",
    "postgresql": "root@127.0.0.1:{}/x",
    "mysql": "root@127.0.0.1:{}/x",
    "redis": "127.0.0.1:{}",
}
WORDS = "accepts connections at 127.0.0.1:"


@contextmanager
def listening(*, answers: int = 0) -> Iterator[tuple[int, list[socket.socket]]]:
    """Let there be a port that answers so many connections like a Redis, and is silent on all others; gives it and them."""
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with suppress(OSError):  # the end
                while True:
                    kept.append(server.accept()[0])
                    if len(kept) <= answers:
                        kept[-1].sendall(b"+PONG\r\n")

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield server.getsockname()[1], kept
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in kept:
                each.close()


@pytest.mark.parametrize("scheme", PLACES)
def test_a_port_that_says_nothing_is_silent(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """For each protocol."""
    monkeypatch.setattr(probes, "LIMIT", 0.3)
    with listening() as (port, _):
        assert probes.is_silent(f"{scheme}://{PLACES[scheme].format(port)}")


@pytest.mark.parametrize("server", SERVERS, ids=[server.name for server in SERVERS])
def test_a_server_that_works_is_not(server: Server) -> None:
    """Also not for a user whom it refuses; nor is a port on which nobody listens: that is another matter."""
    assert not probes.is_silent(need(server), times=3)
    if server.name == "RabbitMQ":
        assert not probes.is_silent(server.url.replace("guest:guest", "guest:wrong"))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    assert not probes.is_silent(f"redis://127.0.0.1:{port}")


def run(*words: str, ci: bool = True, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a process of its own."""
    environment = (
        {name: value for name, value in os.environ.items() if name != "CI"} | settings | ({"CI": "true"} if ci else {})
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
        timeout=300,
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_run_ends_before_it_begins(processes: str) -> None:
    """Not after hundreds of time-outs; the message names the server and its variable."""
    with listening() as (port, _):
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        done = run("--numprocesses", processes, str(TESTS / "model"), ONCEONLY_RABBITMQ=url)
    assert done.returncode == 1
    assert f"Exit: RabbitMQ {WORDS}{port}, and does not answer" in done.stdout + done.stderr
    assert "passed" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_run_ends_when_a_server_begins_to_hang(processes: str) -> None:
    """After the first test that fails for it."""
    with listening(answers=4) as (port, _):  # connected to, and asked, at the start of the run and at the first use
        chosen = ("-k", "entities_count_once", str(TESTS / "demo" / "test_demo.py"), "--timeout", "100")
        done = run("--numprocesses", processes, *chosen, ONCEONLY_REDIS=f"redis://127.0.0.1:{port}?timeout=1")
    assert done.returncode == 2
    assert f"Interrupted: Redis {WORDS}{port}" in done.stdout, done.stdout
    assert "1 failed" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_elsewhere_its_tests_are_skipped_at_once() -> None:
    """Loudly."""
    with listening() as (port, connections):
        chosen = ("-k", "entities_count_once", str(TESTS / "demo" / "test_demo.py"))
        done = run("--numprocesses", "0", *chosen, ci=False, ONCEONLY_REDIS=f"redis://127.0.0.1:{port}")
    assert "!!! NOT TESTED: Redis does not answer" in done.stdout, done.stdout
    assert "3 skipped" in done.stdout.splitlines()[-1]
    assert len(connections) == 2  # the first of three tests connected and asked, the others did not even look
