"""Look-alikes of MongoDB that tests start: a standalone server with its data in memory, and a replica set of one with files.

The second, secantusdb, stores its data in WiredTiger, as MongoDB does. It has transactions, and what it has acknowledged with
`synced` survives SIGKILL.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.available import free_port
from tests.servers.emulators import NX, SECANTUS, Running, listens, running


@contextmanager
def mongodb() -> Iterator[str]:
    """Run it; gives the URL of the server."""
    port = free_port()
    with running(
        NX,
        lambda folder: [
            *("--host", "127.0.0.1", "--port", str(port), "--db", "memory"),
            *("--log-file", str(folder / "log"), "--pid-file", str(folder / "pid")),
        ],
        answers=lambda: listens(port),
    ):
        yield f"mongodb://127.0.0.1:{port}"


class ReplicaSet:
    """A replica set of one. `url` connects to it alone, also through a proxy; give it a path and options."""

    def __init__(self, process: Running, port: int) -> None:
        self._process = process
        self._port = port

    def url(self, database: str, **options: str) -> str:
        """Return the URL of a database."""
        given = "".join(f"&{name}={value}" for name, value in options.items())
        return f"mongodb://127.0.0.1:{self._port}/{database}?directConnection=true{given}"

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._process.stop(signal.SIGKILL)

    def start(self) -> None:
        """Start it again, on the same port and files."""
        self._process.start(lambda: listens(self._port))


@contextmanager
def mongodb_replica_set(*, synced: bool = False) -> Iterator[ReplicaSet]:
    """Run it, with its files in a folder of its own. With `synced` a commit is on disk before it is answered."""
    port = free_port()
    with running(
        SECANTUS,
        lambda folder: [
            *("--host", "127.0.0.1", "--port", str(port), "--storage-path", str(folder / "data"), "--log-level", "ERROR"),
            *(["--sync-on-commit"] if synced else []),
        ],
        answers=lambda: listens(port),
    ) as process:
        yield ReplicaSet(process, port)
