"""A MySQL server of the tests' own, from another release of Debian: nothing on this machine is changed."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers.available import free_port
from tests.servers.debian_roots import Release, inside, root_of
from tests.servers.emulators import Running, listens

MYSQL = Release("MySQL 9.7", "sid", ("mysql-server-core=9.7.4-2",))
SECONDS_TO_START = 90
_DATA = "/var/lib/onceonly-mysql"
_SMALL = ("--innodb-buffer-pool-size=64M", "--performance-schema=OFF", "--mysqlx=OFF", "--secure-file-priv=NULL")


class OwnMySQL:
    """A server whose files are in one folder; it may be stopped, killed and started at will."""

    def __init__(self, folder: Path) -> None:
        self._root = root_of(MYSQL)
        self._folder = folder
        self.port = free_port()
        self.url = f"mysql://root@127.0.0.1:{self.port}/test"
        (folder / "first.sql").write_text("CREATE DATABASE IF NOT EXISTS test;\n")
        self.data.mkdir()
        subprocess.run(self._command("--initialize-insecure"), check=True, capture_output=True, timeout=SECONDS_TO_START)
        place = (f"--port={self.port}", "--bind-address=127.0.0.1", f"--socket={_DATA}/m.sock", f"--pid-file={_DATA}/m.pid")
        command = self._command(*place, f"--init-file={_DATA}/first.sql")
        self._server = Running(command, folder, {"TMPDIR": "/tmp"})  # noqa: S108 - the root has no other one

    @property
    def data(self) -> Path:
        """Return where its data and its certificates are."""
        return self._folder / "data"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._server.start(lambda: listens(self.port), SECONDS_TO_START)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop it, or with SIGKILL let it crash; harmless when it does not run."""
        self._server.stop(how)

    def _command(self, *options: str) -> list[str]:
        common = ("--no-defaults", "--user=root", f"--datadir={_DATA}/data")
        return inside(self._root, "mysqld", *common, *_SMALL, *options, mounts={self._folder: _DATA})


@contextmanager
def own_mysql() -> Iterator[OwnMySQL]:
    """Make a server with an empty database `test`, start it, and remove it at the end."""
    with TemporaryDirectory(prefix="onceonly-mysql-", ignore_cleanup_errors=True) as name:
        server = OwnMySQL(Path(name))
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGKILL)
