"""A MariaDB server of the tests' own, from the installed binaries: for settings that a shared one must not have."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.available import MARIADB, free_port, gone, want
from tests.servers.emulators import Running, listens

SECONDS_TO_START = 60
SMALL = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M", "--performance-schema=OFF", "--key-buffer-size=1M"]


@contextmanager
def own_mariadb(directory: Path, *options: str) -> Iterator[str]:
    """Start a server in a directory without a folder `data`, and stop it; gives the URL of its database `test`.

    Its temporary tables are in the directory: a server that starts deletes those it finds, also those of others in /tmp. It has
    no anonymous user, as whom an unknown user would be let in.
    """
    want(MARIADB.name)
    installer, server = (
        shutil.which("mariadb-install-db"),
        shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin"),
    )
    if installer is None or server is None:
        raise gone(MARIADB, "the binaries of MariaDB's server are not installed")
    folders = [f"--datadir={directory}/data", f"--tmpdir={directory}"]
    common = ["--no-defaults", *folders, *([] if os.getuid() else ["--user=root"]), *SMALL]
    subprocess.run(
        [installer, *common, "--auth-root-authentication-method=normal"],
        check=True,
        capture_output=True,
        timeout=SECONDS_TO_START,
    )
    first = directory / "first.sql"
    first.write_text("DELETE FROM mysql.global_priv WHERE User = '';\nFLUSH PRIVILEGES;\n")
    port = free_port()
    place = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/m.sock", f"--pid-file={directory}/m.pid"]
    running = Running(
        [server, *common, *place, "--log-bin", "--sync-binlog=1", "--server-id=1", f"--init-file={first}", *options],
        directory,
        {},
    )
    try:
        running.start(lambda: listens(port), SECONDS_TO_START)
        yield f"mysql://root@127.0.0.1:{port}/test"
    finally:
        running.stop()
