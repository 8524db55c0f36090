"""A MySQL server of the tests' own, from another release of Debian: nothing on this machine is changed."""

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.available import free_port
from tests.servers.debian_roots import Release, inside, root_of

MYSQL = Release("MySQL 9.7", "sid", ("mysql-server-core=9.7.4-2",))
SECONDS_TO_START = 90
_DATA = "/var/lib/onceonly-mysql"
_SMALL = ("--innodb-buffer-pool-size=64M", "--performance-schema=OFF", "--mysqlx=OFF", "--secure-file-priv=NULL")


class OwnMySQL:
    """A server whose files are in one folder; it may be stopped, killed and started at will."""

    def __init__(self, folder: Path) -> None:
        self._root = root_of(MYSQL)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.url = f"mysql://root@127.0.0.1:{self.port}/test"
        self.log = folder / "log"
        self._first = folder / "first.sql"
        self._first.write_text("CREATE DATABASE IF NOT EXISTS test;\n")
        subprocess.run(self._command("--initialize-insecure"), check=True, capture_output=True, timeout=SECONDS_TO_START)

    @property
    def data(self) -> Path:
        """Return where its data and its certificates are."""
        return self._folder / "data"

    def start(self, *options: str) -> None:
        """Start it, and wait until it answers."""
        place = (f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={_DATA}/m.sock", f"--pid-file={_DATA}/m.pid")
        command = self._command(*place, f"--init-file={_DATA}/first.sql", *options)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < end and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail(f"the tests' own MySQL does not start: {self.log.read_text()[-2000:]}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, or with SIGKILL let it crash; harmless when it does not run."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _command(self, *options: str) -> list[str]:
        self.data.mkdir(exist_ok=True)
        common = ("--no-defaults", "--user=root", f"--datadir={_DATA}/data")
        return inside(self._root, "mysqld", *common, *_SMALL, *options, mounts={self._folder: _DATA})


@contextmanager
def own_mysql(*options: str) -> Iterator[OwnMySQL]:
    """Make a server with an empty database `test`, start it, and remove it at the end."""
    with TemporaryDirectory(prefix="onceonly-mysql-", ignore_cleanup_errors=True) as name:
        server = OwnMySQL(Path(name))
        server.start(*options)
        try:
            yield server
        finally:
            with suppress(ProcessLookupError):
                server.stop(signal.SIGKILL)
