"""The emulator of MongoDB that tests start: a standalone server as its clients see it, its data in memory."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.servers.available import free_port
from tests.servers.emulators import NX, listens, running


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
