"""A MariaDB server of the tests' own, from the installed binaries: for settings that a shared one must not have."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.available import MARIADB, free_port, want
from tests.servers.emulators import listens

SECONDS_TO_START = 60
SMALL = ["--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M", "--performance-schema=OFF", "--key-buffer-size=1M"]


@contextmanager
def own_mariadb(directory: Path, *options: str) -> Iterator[str]:
    """Start a server in a directory without a folder `data`, and stop it; gives the URL of its database `test`."""
    want(MARIADB.name)
    installer, server = (
        shutil.which("mariadb-install-db"),
        shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin"),
    )
    if installer is None or server is None:
        reason = "the binaries of MariaDB's server are not installed"
        if os.environ.get("CI", "").lower() in {"true", "1"}:
            pytest.fail(reason)
        pytest.skip(reason)
    own = directory / "temporary"  # a server that starts deletes temporary tables, also those of others in /tmp
    own.mkdir()
    common = ["--no-defaults", f"--datadir={directory}/data", f"--tmpdir={own}", *([] if os.getuid() else ["--user=root"])]
    subprocess.run(
        [installer, *common, "--auth-root-authentication-method=normal", *SMALL],
        check=True,
        capture_output=True,
        timeout=SECONDS_TO_START,
    )
    port = free_port()
    place = [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={directory}/m.sock", f"--pid-file={directory}/m.pid"]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            [server, *common, *SMALL, *place, "--log-bin", "--sync-binlog=1", "--server-id=1", *options], stdout=log, stderr=log
        ) as process,
    ):
        try:
            _wait(port, process)
            yield f"mysql://root@127.0.0.1:{port}/test"
        finally:
            process.terminate()


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < end and process.poll() is None:
        if listens(port):
            return
        time.sleep(0.05)
    pytest.fail("the tests' own MariaDB does not start")
