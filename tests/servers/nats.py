"""A NATS server of the tests' own, where its program is installed. It may be stopped, killed and started at will."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.shop_demo.rabbitmq import free_port
from tests.servers.available import NATS, gone, want

START_SECONDS = 60.0


class OwnNats:
    """A server with JetStream on a port of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"

    def start(self, settings: str = "") -> None:
        """Start it, with these lines in its configuration, and wait until it is ready."""
        configuration, log = self._folder / "nats.conf", self._folder / "log"
        configuration.write_text(
            f'listen: 127.0.0.1:{self.port}\njetstream {{ store_dir: "{self._folder}/data" }}\n{settings}\n'
        )
        log.unlink(missing_ok=True)
        self._process = subprocess.Popen([self._program, "-c", str(configuration), "-l", str(log)])
        end = time.monotonic() + START_SECONDS
        while not (log.exists() and "Server is ready" in log.read_text()):
            assert time.monotonic() < end, "nats-server did not start"
            assert self._process.poll() is None, log.read_text() if log.exists() else "nats-server ended"
            time.sleep(0.02)

    def reset(self) -> None:
        """Kill it, and start it without data."""
        self.stop(signal.SIGKILL)
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        self.start()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, or kill it."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=60)
            self._process = None


@contextmanager
def own_nats() -> Iterator[OwnNats]:
    """Make a server that is not started yet, and remove it at the end; a loud skip where there is no program."""
    want(NATS.name)
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise gone(NATS, "NATS's own program, nats-server, is not installed")
    with TemporaryDirectory(prefix="onceonly-nats-") as folder:
        server = OwnNats(program, Path(folder))
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)
