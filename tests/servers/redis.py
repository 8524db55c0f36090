"""A Redis server of the tests' own, from the installed program: with settings that others must not suffer from."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.available import REDIS, free_port, gone, want
from tests.servers.emulators import Running, listens

OTHER = 10_000
"""How far above its port a member of a cluster has another one."""


class OwnRedis:
    """A server that may be stopped, killed and started again with its data."""

    def __init__(self, server: Running, port: int) -> None:
        self._server = server
        self._port = port
        self.url = f"redis://127.0.0.1:{port}/0"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._server.start(lambda: listens(self._port))

    def stop(self) -> None:
        """Let it close its files."""
        self._server.stop()

    def kill(self) -> None:
        """Kill it: a crash."""
        self._server.stop(signal.SIGKILL)


@contextmanager
def own_redis(*settings: str) -> Iterator[str]:
    """Run one with these settings; gives its URL. A loud skip where the program is not installed."""
    with own_redis_server(*settings) as server:
        yield server.url


@contextmanager
def own_redis_server(*settings: str) -> Iterator[OwnRedis]:
    """Run one with these settings, which a test may stop. A loud skip where the program is not installed."""
    want(REDIS.name)
    program = shutil.which("redis-server") or shutil.which("redis-server", path="/opt/homebrew/bin:/usr/local/bin")
    if program is None:
        raise gone(REDIS, "Redis's own program, redis-server, is not installed")
    port = free_port(OTHER)
    with TemporaryDirectory(prefix="onceonly-redis-", ignore_cleanup_errors=True) as name:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", name, "--save", "", *settings]
        server = OwnRedis(Running(command, Path(name), {}), port)
        try:
            server.start()
            yield server
        finally:
            server.stop()
