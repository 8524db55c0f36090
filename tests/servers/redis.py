"""A Redis server of the tests' own, from the installed program: with settings that others must not suffer from."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.available import REDIS, free_port, gone
from tests.servers.emulators import Running, listens

HIGHEST_PORT = 55_535  # a member of a cluster has another one 10,000 above
_BINARIES = f"{os.environ.get('PATH', '')}:/opt/homebrew/bin:/usr/local/bin"


@contextmanager
def own_redis(*settings: str) -> Iterator[str]:
    """Run one with these settings; gives its URL. A loud skip where the program is not installed."""
    program = shutil.which("redis-server", path=_BINARIES)
    if program is None:
        raise gone(REDIS, "Redis's own program, redis-server, is not installed")
    port = next(port for port in iter(free_port, None) if port <= HIGHEST_PORT)
    with TemporaryDirectory(prefix="onceonly-redis-", ignore_cleanup_errors=True) as name:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", name, "--save", "", *settings]
        server = Running(command, Path(name), {})
        try:
            server.start(lambda: listens(port))
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.stop()
